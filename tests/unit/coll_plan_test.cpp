// SPDX-License-Identifier: Apache-2.0
// What the members of a communicator would do, done in ordinary memory, against what the collective means.
#include "coll/device/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace awaken::coll {
namespace {

using Bytes = std::vector<unsigned char>;

/// Buffers of all members; elements of a reduction are single bytes that are added, so 8 wraps are as good as sums.
struct Memory {
    std::vector<Bytes> send, receive;

    Bytes& of(const Operand& place) {
        return (place.receives ? receive : send)[static_cast<std::size_t>(place.member)];
    }
};

/// Carries out a member's plan, and notes every byte that it writes: no two members may write the same one.
class Executor {
  public:
    Executor(Memory& memory, std::uint64_t element_bytes) : _memory(memory), _element_bytes(element_bytes) {}

    void run(const Plan& plan) {
        for (const Combination& combination : plan.combinations) {
            const std::uint64_t bytes = combination.elements * _element_bytes;
            ASSERT_GE(combination.source_count, 1U);
            ASSERT_GE(combination.target_count, 1U);
            Bytes result(bytes);
            for (unsigned i = 0; i < combination.source_count; ++i) {
                const Operand& source = combination.sources[i];
                const Bytes& from = _memory.of(source);
                ASSERT_LE(source.offset + bytes, from.size());
                EXPECT_TRUE(combination.source_count == 1 || source.member == static_cast<int>(i))
                    << "folded in the order of the ranks";
                for (std::uint64_t at = 0; at < bytes; ++at) {
                    result[at] = static_cast<unsigned char>(result[at] + from[source.offset + at]);
                }
            }
            for (unsigned i = 0; i < combination.target_count; ++i) {
                write(combination.targets[i], result);
            }
        }
        for (const Move& move : plan.moves) {
            const Bytes& from = _memory.of(move.source);
            ASSERT_LE(move.source.offset + move.bytes, from.size());
            const auto begin = from.begin() + static_cast<std::ptrdiff_t>(move.source.offset);
            write(move.target, Bytes(begin, begin + static_cast<std::ptrdiff_t>(move.bytes)));
        }
    }

  private:
    void write(const Operand& place, const Bytes& bytes) {
        Bytes& to = _memory.of(place);
        ASSERT_LE(place.offset + bytes.size(), to.size());
        if (bytes.empty()) {
            return;
        }
        std::memcpy(&to[place.offset], bytes.data(), bytes.size());
        Bytes& marks = _written[{place.member, place.receives}];
        marks.resize(to.size());
        EXPECT_EQ(std::memchr(&marks[place.offset], 1, bytes.size()), nullptr)
            << "some of " << bytes.size() << " bytes at " << place.offset << " of member " << place.member
            << " are written twice";
        std::memset(&marks[place.offset], 1, bytes.size());
    }

    Memory& _memory;
    const std::uint64_t _element_bytes;
    std::map<std::pair<int, bool>, Bytes> _written;  ///< 1 for each byte that was
};

struct Case {
    int members;
    Algorithm algorithm;
};

class PlanTest : public ::testing::TestWithParam<Case> {
  protected:
    Shape shape(Kind kind, int own) const {
        Shape shape;
        shape.kind = kind;
        shape.members = GetParam().members;
        shape.own = own;
        return shape;
    }
    Bytes random(std::size_t bytes) {
        Bytes data(bytes);
        for (unsigned char& byte : data) {
            byte = static_cast<unsigned char>(_numbers());
        }
        return data;
    }
    Memory memory(std::size_t send, std::size_t receive) {
        Memory made;
        for (int member = 0; member < GetParam().members; ++member) {
            made.send.push_back(random(send));
            made.receive.push_back(random(receive));
        }
        return made;
    }
    Bytes sum(const Memory& memory, std::size_t begin, std::size_t bytes) const {
        Bytes total(bytes);
        for (const Bytes& each : memory.send) {
            for (std::size_t at = 0; at < bytes; ++at) {
                total[at] = static_cast<unsigned char>(total[at] + each[begin + at]);
            }
        }
        return total;
    }
    int members() const { return GetParam().members; }
    template <class Set>
    void run_all(Kind kind, Memory& memory, std::uint64_t element_bytes, const Set& set) {
        Executor executor(memory, element_bytes);
        for (int own = 0; own < members(); ++own) {
            Shape each = shape(kind, own);
            each.element_bytes = element_bytes;
            set(each);
            executor.run(make_plan(each, GetParam().algorithm));
        }
    }

    std::mt19937 _numbers{7};
};

constexpr std::uint64_t kElements[] = {0, 1, 5, 64, 257, 1000, 5003};

TEST_P(PlanTest, AllreduceGivesTheSumToAll) {
    for (const std::uint64_t elements : kElements) {
        for (const std::uint64_t element_bytes : {1, 8, 16}) {
            Memory given = memory(elements * element_bytes, elements * element_bytes);
            const Bytes expected = sum(given, 0, elements * element_bytes);
            run_all(Kind::allreduce, given, element_bytes, [&](Shape& each) { each.elements = elements; });
            for (const Bytes& result : given.receive) {
                EXPECT_EQ(result, expected) << elements;
            }
        }
    }
}

TEST_P(PlanTest, ReduceGivesTheSumToTheRoot) {
    for (int root = 0; root < members(); ++root) {
        for (const std::uint64_t elements : kElements) {
            Memory given = memory(elements * 4, elements * 4);
            const Memory before = given;
            const Bytes expected = sum(given, 0, elements * 4);
            run_all(Kind::reduce, given, 4, [&](Shape& each) {
                each.elements = elements;
                each.root = root;
            });
            for (int member = 0; member < members(); ++member) {
                const auto at = static_cast<std::size_t>(member);
                EXPECT_EQ(given.receive[at], member == root ? expected : before.receive[at]);
            }
        }
    }
}

TEST_P(PlanTest, ScansGiveEachTheSumOfThoseBeforeIt) {
    for (const Kind kind : {Kind::scan, Kind::exscan}) {
        for (const std::uint64_t elements : kElements) {
            Memory given = memory(elements * 2, elements * 2);
            Bytes expected(elements * 2);
            std::vector<Bytes> results;
            for (int member = 0; member < members(); ++member) {
                const auto at = static_cast<std::size_t>(member);
                const Bytes before = member == 0 ? given.receive[at] : expected;  // the first one's is left alone
                for (std::size_t byte = 0; byte < expected.size(); ++byte) {
                    expected[byte] = static_cast<unsigned char>(expected[byte] + given.send[at][byte]);
                }
                results.push_back(kind == Kind::scan ? expected : before);
            }
            run_all(kind, given, 2, [&](Shape& each) { each.elements = elements; });
            EXPECT_EQ(given.receive, results) << to_string(kind) << ' ' << elements;
        }
    }
}

TEST_P(PlanTest, BroadcastReachesAllButTheRoot) {
    for (int root = 0; root < members(); ++root) {
        for (const std::uint64_t elements : kElements) {
            Memory given = memory(elements, elements);
            const Bytes expected = given.send[static_cast<std::size_t>(root)];
            const Bytes untouched = given.receive[static_cast<std::size_t>(root)];
            run_all(Kind::broadcast, given, 1, [&](Shape& each) {
                each.elements = elements;
                each.root = root;
            });
            for (int member = 0; member < members(); ++member) {
                EXPECT_EQ(given.receive[static_cast<std::size_t>(member)], member == root ? untouched : expected);
            }
        }
    }
}

TEST_P(PlanTest, ReduceScatterGivesEachItsPart) {
    std::vector<std::uint64_t> counts, begins;
    std::uint64_t all = 0;
    for (int member = 0; member < members(); ++member) {
        counts.push_back(static_cast<std::uint64_t>(member % 3) * 31);
        begins.push_back(all);
        all += counts.back();
    }
    Memory given = memory(all * 2, all * 2);
    std::vector<Bytes> expected = given.receive;
    for (std::size_t member = 0; member < expected.size(); ++member) {
        const Bytes part = sum(given, begins[member] * 2, counts[member] * 2);
        std::copy(part.begin(), part.end(), expected[member].begin());
    }
    run_all(Kind::reduce_scatter, given, 2, [&](Shape& each) {
        each.elements = counts[static_cast<std::size_t>(each.own)];
        each.own_offset = begins[static_cast<std::size_t>(each.own)] * 2;
    });
    EXPECT_EQ(given.receive, expected);
}

/// Parts that differ by member and lie in another order than the ranks, with gaps; the same tables everywhere or not.
struct Tables {
    Tables(int members, std::mt19937& numbers) {
        const auto n = static_cast<std::size_t>(members);
        for (std::size_t member = 0; member < n; ++member) {
            std::vector<std::uint64_t>& table = tables.emplace_back(2 * n);
            for (std::size_t side = 0; side < 2; ++side) {
                std::vector<std::size_t> order(n);
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), numbers);
                std::uint64_t at = numbers() % 5;
                for (const std::size_t part : order) {
                    table[side * n + part] = at;
                    at += kPart + numbers() % 5;
                }
                bytes = std::max(bytes, at);
            }
        }
    }
    static constexpr std::uint64_t kPart = 40;
    std::vector<std::vector<std::uint64_t>> tables;
    std::uint64_t bytes = 0;

    void give(Shape& shape) const {
        for (std::size_t member = 0; member < tables.size(); ++member) {
            shape.offsets[member] = tables[member].data();
        }
    }
    std::uint64_t sent(std::size_t member, std::size_t part) const { return tables[member][part]; }
    std::uint64_t received(std::size_t member, std::size_t part) const { return tables[member][tables.size() + part]; }
};

void copy_part(const Bytes& from, std::uint64_t source, Bytes& to, std::uint64_t target, std::uint64_t bytes) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), bytes,
                to.begin() + static_cast<std::ptrdiff_t>(target));
}

TEST_P(PlanTest, PartsGoWhereTheTablesSay) {
    const Tables tables(members(), _numbers);
    const auto n = static_cast<std::size_t>(members());
    std::vector<std::uint64_t> bytes(n);
    for (std::size_t member = 0; member < n; ++member) {
        bytes[member] = member % 4 == 2 ? 0 : Tables::kPart - member;
    }
    const auto given = [&](Shape& each) {
        tables.give(each);
        each.own_bytes = bytes[static_cast<std::size_t>(each.own)];
        each.bytes_from = bytes.data();
    };

    Memory all = memory(tables.bytes, tables.bytes);
    std::vector<Bytes> expected = all.receive;
    for (std::size_t to = 0; to < n; ++to) {
        for (std::size_t from = 0; from < n; ++from) {
            copy_part(all.send[from], 0, expected[to], tables.received(to, from), bytes[from]);
        }
    }
    run_all(Kind::allgather, all, 1, given);
    EXPECT_EQ(all.receive, expected) << "allgatherv";

    all = memory(tables.bytes, tables.bytes);
    expected = all.receive;
    for (std::size_t to = 0; to < n; ++to) {
        for (std::size_t from = 0; from < n; ++from) {
            copy_part(all.send[from], tables.sent(from, to), expected[to], tables.received(to, from), bytes[from]);
        }
    }
    run_all(Kind::alltoall, all, 1, given);
    EXPECT_EQ(all.receive, expected) << "alltoallv";

    for (std::size_t root = 0; root < n; ++root) {
        all = memory(tables.bytes, tables.bytes);
        expected = all.receive;
        for (std::size_t from = 0; from < n; ++from) {
            copy_part(all.send[from], 0, expected[root], tables.received(root, from), bytes[from]);
        }
        run_all(Kind::gather, all, 1, [&](Shape& each) {
            given(each);
            each.root = static_cast<int>(root);
        });
        EXPECT_EQ(all.receive, expected) << "gatherv";

        all = memory(tables.bytes, tables.bytes);
        expected = all.receive;
        for (std::size_t to = 0; to < n; ++to) {
            copy_part(all.send[root], tables.sent(root, to), expected[to], 0, bytes[to]);
        }
        run_all(Kind::scatter, all, 1, [&](Shape& each) {
            given(each);
            each.root = static_cast<int>(root);
        });
        EXPECT_EQ(all.receive, expected) << "scatterv";
    }
}

TEST_P(PlanTest, EqualPartsLieOneAfterTheOther) {
    constexpr std::uint64_t kPart = 33;
    const auto n = static_cast<std::size_t>(members());
    Memory all = memory(n * kPart, n * kPart);
    std::vector<Bytes> expected = all.receive;
    for (std::size_t to = 0; to < n; ++to) {
        for (std::size_t from = 0; from < n; ++from) {
            copy_part(all.send[from], to * kPart, expected[to], from * kPart, kPart);
        }
    }
    run_all(Kind::alltoall, all, 1, [](Shape& each) { each.block_bytes = each.own_bytes = kPart; });
    EXPECT_EQ(all.receive, expected);
}

TEST_P(PlanTest, InPlaceNobodyCopiesAPartOntoItself) {
    for (const Kind kind : {Kind::gather, Kind::scatter, Kind::allgather}) {
        for (int own = 0; own < members(); ++own) {
            Shape each = shape(kind, own);
            each.in_place = true;
            each.root = own;
            each.own_bytes = each.block_bytes = 8;
            const Plan plan = make_plan(each, GetParam().algorithm);
            EXPECT_TRUE(plan.moves.empty()) << to_string(kind);
            for (const Combination& combination : plan.combinations) {
                for (unsigned i = 0; i < combination.target_count; ++i) {
                    EXPECT_NE(combination.targets[i].member, own) << to_string(kind);
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Members, PlanTest,
                         ::testing::Values(Case{1, Algorithm::root_only}, Case{1, Algorithm::two_shot},
                                           Case{2, Algorithm::root_only}, Case{2, Algorithm::two_shot},
                                           Case{3, Algorithm::two_shot}, Case{5, Algorithm::root_only},
                                           Case{7, Algorithm::two_shot}, Case{8, Algorithm::two_shot},
                                           Case{32, Algorithm::two_shot}, Case{1, Algorithm::one_shot},
                                           Case{4, Algorithm::one_shot}),
                         [](const auto& given) {
                             std::string name = to_string(given.param.algorithm);
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name + std::to_string(given.param.members);
                         });

TEST(PlanTest, OneLeavesTheWorkToOneMember) {
    for (const Kind kind : {Kind::allreduce, Kind::reduce, Kind::broadcast}) {
        int workers = 0;
        for (int own = 0; own < 4; ++own) {
            Shape shape;
            shape.kind = kind;
            shape.members = 4;
            shape.own = own;
            shape.root = 2;
            shape.elements = 100;
            workers += make_plan(shape, Algorithm::root_only).empty() ? 0 : 1;
        }
        EXPECT_EQ(workers, 1) << to_string(kind);
    }
}

}  // namespace
}  // namespace awaken::coll
