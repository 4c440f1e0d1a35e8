// SPDX-License-Identifier: Apache-2.0
#include "probe/checks.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <type_traits>

#include "mpi/mpi_functions.h"

// A check is a generic lambda, called with the function, the form of its counts, and one count after the other: one
// text serves the blocking, the nonblocking and the persistent form of a function, with counts of either type. Rank 0
// is the root and the sender, rank 1 its peer; further ranks take part in collectives.
namespace awaken::probe {
namespace {

/// The type of counts, displacements and positions in external data in a form of the functions.
struct IntCounts {
    using Count = int;
    using Displacement = int;
    using ExternalPosition = MPI_Aint;
};
struct LargeCounts {
    using Count = MPI_Count;
    using Displacement = MPI_Aint;
    using ExternalPosition = MPI_Count;
};

/// What becomes of a request where the arguments do not tell.
enum class Completion : std::uint8_t { by_wait, persistent };

/// Calls a function in whatever form it is, and completes it.
template <Completion completion = Completion::by_wait, typename F, typename... A>
void carry_out(const Trial& trial, const F function, A... arguments) {
    MPI_Request request = MPI_REQUEST_NULL;
    if constexpr (std::is_invocable_v<F, A...>) {
        trial.require(function(arguments...));
    } else if constexpr (std::is_invocable_v<F, A..., MPI_Status*>) {
        MPI_Status status;
        trial.require(function(arguments..., &status));
    } else if constexpr (std::is_invocable_v<F, A..., MPI_Request*>) {
        trial.require(function(arguments..., &request));
        completion == Completion::persistent ? trial.run_persistent(request) : trial.wait(request);
    } else {
        trial.require(function(arguments..., MPI_INFO_NULL, &request));
        trial.run_persistent(request);
    }
}

/// One block of values per rank, one after another.
Values blocks(const Trial& trial, const auto& block_of_rank) {
    Values all;
    for (int r = 0; r < trial.ranks(); ++r) {
        const Values block = block_of_rank(r);
        all.insert(all.end(), block.begin(), block.end());
    }
    return all;
}

/// The sums of numbers() over the ranks from 0 to `last`.
Values sums(const int last, const int count) {
    Values total = numbers(0, count);
    for (int r = 1; r <= last; ++r) {
        const Values values = numbers(r, count);
        std::transform(total.begin(), total.end(), values.begin(), total.begin(), std::plus<>());
    }
    return total;
}

/// A count for each rank, each `step` more than the one before, and the displacements of blocks that follow each other.
template <typename Form>
struct Shares {
    std::vector<typename Form::Count> counts;
    std::vector<typename Form::Displacement> displacements;
    int total = 0;

    /// `unit`: what an element counts in displacements.
    Shares(Form /*form*/, const int ranks, const int count, const int step = 0, const int unit = 1) {
        for (int r = 0; r < ranks; ++r) {
            displacements.push_back(total * unit);
            counts.push_back(count + r * step);
            total += count + r * step;
        }
    }
    [[nodiscard]] int of(const int rank) const { return static_cast<int>(counts[std::size_t(rank)]); }
};

// ---- point-to-point ------------------------------------------------------------------------------------------------

/// Runs `sender` at rank 0 and `receiver` at rank 1, with either kind of memory on the other side.
void between_two(const Trial& trial, const auto& sender, const auto& receiver) {
    for (const bool same_kind : {false, true}) {
        trial.barrier();
        if (trial.rank() == 0) {
            sender(same_kind);
        }
        if (trial.rank() == 1) {
            receiver(same_kind);
        }
    }
}

/// MPI_Send and its kin. The receive is posted before the send may begin, which MPI_Rsend needs.
template <Completion completion = Completion::by_wait>
constexpr auto sends = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    const auto send = [&](const bool /*same_kind*/) {
        const Integers buffer = trial.holding(numbers(0, count));
        trial.require(MPI_Recv(nullptr, 0, MPI_INT, 1, trial.tag(), trial.communicator(), MPI_STATUS_IGNORE));
        carry_out<completion>(trial, function, buffer.data(), count, MPI_INT, 1, trial.tag(), trial.communicator());
        Trial::expect(buffer, numbers(0, count), "the send buffer");
    };
    const auto receive = [&](const bool same_kind) {
        const Integers buffer = trial.for_peer(same_kind, blanks(count));
        MPI_Request request = MPI_REQUEST_NULL;
        trial.require(MPI_Irecv(buffer.data(), count, MPI_INT, 0, trial.tag(), trial.communicator(), &request));
        trial.require(MPI_Send(nullptr, 0, MPI_INT, 0, trial.tag(), trial.communicator()));
        trial.wait(request);
        Trial::expect(buffer, numbers(0, count));
    };
    between_two(trial, send, receive);
};

/// The buffered modes, which need memory to copy to.
template <Completion completion = Completion::by_wait>
constexpr auto buffered_sends = [](const Trial& trial, const auto function, const auto form, const int count) {
    std::vector<std::byte> space(2 * (static_cast<std::size_t>(count) * sizeof(std::int32_t) + MPI_BSEND_OVERHEAD));
    trial.require(MPI_Buffer_attach(space.data(), static_cast<int>(space.size())));
    sends<completion>(trial, function, form, count);
    void* detached = nullptr;
    int size = 0;
    trial.require(MPI_Buffer_detach(&detached, &size));
};

/// Calls `receive(buffer)` at rank 1 for what rank 0 sends.
void receive_from_0(const Trial& trial, const int count, const auto& receive) {
    const auto sender = [&](const bool same_kind) {
        const Integers buffer = trial.for_peer(same_kind, numbers(0, count));
        trial.require(MPI_Send(buffer.data(), count, MPI_INT, 1, trial.tag(), trial.communicator()));
    };
    const auto receiver = [&](const bool /*same_kind*/) {
        const Integers buffer = trial.blank(count);
        receive(buffer.data());
        Trial::expect(buffer, numbers(0, count));
    };
    between_two(trial, sender, receiver);
}

template <Completion completion = Completion::by_wait>
constexpr auto receives = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    receive_from_0(trial, count, [&](auto* buffer) {
        carry_out<completion>(trial, function, buffer, count, MPI_INT, 0, trial.tag(), trial.communicator());
    });
};

constexpr auto matched_receives = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    receive_from_0(trial, count, [&](auto* buffer) {
        MPI_Message message{};
        MPI_Status status;
        trial.require(MPI_Mprobe(0, trial.tag(), trial.communicator(), &message, &status));
        carry_out(trial, function, buffer, count, MPI_INT, &message);
    });
};

/// Both at once, between ranks 0 and 1.
constexpr auto exchanges = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    const auto exchange = [&](const bool /*same_kind*/) {
        const int peer = 1 - trial.rank();
        const Integers sent = trial.holding(numbers(trial.rank(), count));
        const Integers received = trial.blank(count);
        carry_out(trial, function, sent.data(), count, MPI_INT, peer, trial.tag(), received.data(), count, MPI_INT,
                  peer, trial.tag(), trial.communicator());
        Trial::expect(received, numbers(peer, count));
    };
    between_two(trial, exchange, exchange);
};

constexpr auto replacing_exchanges = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    const auto exchange = [&](const bool /*same_kind*/) {
        const int peer = 1 - trial.rank();
        const Integers buffer = trial.holding(numbers(trial.rank(), count));
        carry_out(trial, function, buffer.data(), count, MPI_INT, peer, trial.tag(), peer, trial.tag(),
                  trial.communicator());
        Trial::expect(buffer, numbers(peer, count), "the buffer");
    };
    between_two(trial, exchange, exchange);
};

/// The MPI's functions, of a type that depends on F: what uses it is looked at only where F is declared.
template <typename F>
const std::conditional_t<std::is_void_v<F>, F, bench::MpiFunctions>& table_for() {
    return bench::reached_functions();
}

/// MPI_Psend_init or MPI_Precv_init, whichever is `of_interest`: only its buffer is of the cell's kind in the first
/// round. They match only each other.
template <bool sends>
constexpr auto partitioned = []<typename F>(const Trial& trial, F /*function*/, auto /*form*/, const int count) {
    constexpr int kPartitions = 4;
    const auto& mpi = table_for<F>();
    const auto sender = [&](const bool same_kind) {
        const Integers buffer = trial.for_peer(sends || same_kind, numbers(0, count));
        MPI_Request request = MPI_REQUEST_NULL;
        trial.require(mpi.Psend_init(buffer.data(), kPartitions, count / kPartitions, MPI_INT, 1, trial.tag(),
                                     trial.communicator(), MPI_INFO_NULL, &request));
        trial.require(MPI_Start(&request));
        for (int partition = 0; partition < kPartitions; ++partition) {
            trial.require(mpi.Pready(partition, request));
        }
        trial.wait(request);
        trial.require(MPI_Request_free(&request));
    };
    const auto receiver = [&](const bool same_kind) {
        const Integers buffer = trial.for_peer(!sends || same_kind, blanks(count));
        carry_out(trial, mpi.Precv_init, buffer.data(), kPartitions, count / kPartitions, MPI_INT, 0, trial.tag(),
                  trial.communicator());
        Trial::expect(buffer, numbers(0, count));
    };
    between_two(trial, sender, receiver);
};

// ---- collectives ---------------------------------------------------------------------------------------------------

/// Calls `call(send buffer, receive buffer)`. `counts`: whether the receive buffer does at this rank.
void send_and_receive(const Trial& trial, const Values& sent, const Values& expected, const auto& call,
                      const bool counts = true) {
    const Integers from = trial.holding(sent);
    const Integers to = trial.blank(static_cast<int>(expected.size()));
    call(from.data(), to.data());
    if (counts) {
        Trial::expect(to, expected);
    }
}

constexpr auto broadcast = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    const Integers buffer = trial.rank() == 0 ? trial.holding(numbers(0, count)) : trial.blank(count);
    carry_out(trial, function, buffer.data(), count, MPI_INT, 0, trial.communicator());
    Trial::expect(buffer, numbers(0, count), "the buffer");
};

/// MPI_Gather with its root, and MPI_Allgather without.
constexpr auto gathers(const auto... root) {
    return [=](const Trial& trial, const auto function, auto /*form*/, const int count) {
        const auto call = [&](auto* sent, auto* received) {
            carry_out(trial, function, sent, count, MPI_INT, received, count, MPI_INT, root..., trial.communicator());
        };
        send_and_receive(trial, numbers(trial.rank(), count),
                         blocks(trial, [&](const int r) { return numbers(r, count); }), call,
                         sizeof...(root) == 0 || trial.rank() == 0);
    };
}

constexpr auto varying_gathers(const auto... root) {
    return [=](const Trial& trial, const auto function, const auto form, const int count) {
        const Shares shares(form, trial.ranks(), count, 1);
        const auto call = [&](auto* sent, auto* received) {
            carry_out(trial, function, sent, shares.of(trial.rank()), MPI_INT, received, shares.counts.data(),
                      shares.displacements.data(), MPI_INT, root..., trial.communicator());
        };
        send_and_receive(trial, numbers(trial.rank(), shares.of(trial.rank())),
                         blocks(trial, [&](const int r) { return numbers(r, shares.of(r)); }), call,
                         sizeof...(root) == 0 || trial.rank() == 0);
    };
}

constexpr auto scatters = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    const auto call = [&](auto* sent, auto* received) {
        carry_out(trial, function, sent, count, MPI_INT, received, count, MPI_INT, 0, trial.communicator());
    };
    send_and_receive(trial, blocks(trial, [&](const int r) { return numbers(r, count); }), numbers(trial.rank(), count),
                     call);
};

constexpr auto varying_scatters = [](const Trial& trial, const auto function, const auto form, const int count) {
    const Shares shares(form, trial.ranks(), count, 1);
    const int own = shares.of(trial.rank());
    const auto call = [&](auto* sent, auto* received) {
        carry_out(trial, function, sent, shares.counts.data(), shares.displacements.data(), MPI_INT, received, own,
                  MPI_INT, 0, trial.communicator());
    };
    send_and_receive(trial, blocks(trial, [&](const int r) { return numbers(r, shares.of(r)); }),
                     numbers(trial.rank(), own), call);
};

/// Makes a call in which rank r takes `count_of(r)` elements from each rank, other ones from each.
void all_to_all(const Trial& trial, const auto& count_of, const auto& call) {
    const int own = trial.rank();
    const auto pair = [&](const int from, const int to) { return numbers(from * trial.ranks() + to, count_of(to)); };
    send_and_receive(trial, blocks(trial, [&](const int to) { return pair(own, to); }),
                     blocks(trial, [&](const int from) { return pair(from, own); }), call);
}

constexpr auto alltoalls = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    all_to_all(
        trial, [&](int) { return count; },
        [&](auto* sent, auto* received) {
            carry_out(trial, function, sent, count, MPI_INT, received, count, MPI_INT, trial.communicator());
        });
};

constexpr auto varying_alltoalls = [](const Trial& trial, const auto function, const auto form, const int count) {
    const Shares out(form, trial.ranks(), count, 1);
    const Shares in(form, trial.ranks(), out.of(trial.rank()));
    all_to_all(
        trial, [&](const int rank) { return out.of(rank); },
        [&](auto* sent, auto* received) {
            carry_out(trial, function, sent, out.counts.data(), out.displacements.data(), MPI_INT, received,
                      in.counts.data(), in.displacements.data(), MPI_INT, trial.communicator());
        });
};

/// As MPI_Alltoall, with displacements in bytes and a type for each peer.
constexpr auto typed_alltoalls = [](const Trial& trial, const auto function, const auto form, const int count) {
    const Shares shares(form, trial.ranks(), count, 0, sizeof(std::int32_t));
    const std::vector<MPI_Datatype> types(shares.counts.size(), MPI_INT);
    all_to_all(
        trial, [&](int) { return count; },
        [&](auto* sent, auto* received) {
            carry_out(trial, function, sent, shares.counts.data(), shares.displacements.data(), types.data(), received,
                      shares.counts.data(), shares.displacements.data(), types.data(), trial.communicator());
        });
};

int every_rank(const Trial& trial) {
    return trial.ranks() - 1;
}
int up_to_own_rank(const Trial& trial) {
    return trial.rank();
}
int before_own_rank(const Trial& trial) {
    return trial.rank() - 1;
}

/// MPI_Reduce with its root, MPI_Allreduce, MPI_Scan and MPI_Exscan: rank r is to have the sums over the ranks up to
/// last_of(r).
constexpr auto reductions(int (*const last_of)(const Trial&), const auto... root) {
    return [=](const Trial& trial, const auto function, auto /*form*/, const int count) {
        const auto call = [&](auto* sent, auto* received) {
            carry_out(trial, function, sent, received, count, MPI_INT, MPI_SUM, root..., trial.communicator());
        };
        // What MPI_Exscan leaves at rank 0 is undefined.
        send_and_receive(trial, numbers(trial.rank(), count), sums(last_of(trial), count), call,
                         last_of(trial) >= 0 && (sizeof...(root) == 0 || trial.rank() == 0));
    };
}

/// Calls `call(send buffer, receive buffer)`, which is to leave the own part of the sums over all ranks.
void reduce_and_scatter(const Trial& trial, const Shares<IntCounts>& shares, const auto& call) {
    const Values all = sums(every_rank(trial), shares.total);
    const auto first = all.begin() + shares.displacements[std::size_t(trial.rank())];
    send_and_receive(trial, numbers(trial.rank(), shares.total), {first, first + shares.of(trial.rank())}, call);
}

constexpr auto scattered_reductions = [](const Trial& trial, const auto function, const auto form, const int count) {
    const Shares shares(form, trial.ranks(), count, 1);
    reduce_and_scatter(trial, {{}, trial.ranks(), count, 1}, [&](auto* sent, auto* received) {
        carry_out(trial, function, sent, received, shares.counts.data(), MPI_INT, MPI_SUM, trial.communicator());
    });
};

constexpr auto block_reductions = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    reduce_and_scatter(trial, {{}, trial.ranks(), count}, [&](auto* sent, auto* received) {
        carry_out(trial, function, sent, received, count, MPI_INT, MPI_SUM, trial.communicator());
    });
};

constexpr auto local_reductions = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    const Integers input = trial.holding(numbers(0, count));
    const Integers result = trial.holding(numbers(1, count));
    trial.require(function(input.data(), result.data(), count, MPI_INT, MPI_SUM));
    Trial::expect(result, sums(1, count), "the result");
};

// ---- neighbourhood collectives: a ring, each rank sends to the next -------------------------------------------------

class Ring {
  public:
    explicit Ring(const Trial& trial) : _before((trial.rank() + trial.ranks() - 1) % trial.ranks()) {
        const int next = (trial.rank() + 1) % trial.ranks();
        trial.require(MPI_Dist_graph_create_adjacent(trial.communicator(), 1, &_before, MPI_UNWEIGHTED, 1, &next,
                                                     MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &_communicator));
        trial.require(MPI_Comm_set_errhandler(_communicator, MPI_ERRORS_RETURN));
    }
    ~Ring() {
        // After an error the job is about to end.
        if (std::uncaught_exceptions() == 0) {
            MPI_Comm_free(&_communicator);
        }
    }
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] int before() const noexcept { return _before; }

  private:
    int _before;
    MPI_Comm _communicator = MPI_COMM_NULL;
};

/// `arguments(call, form, sent, received, count)` hands to `call` what stands before the communicator.
constexpr auto neighbors(const auto arguments) {
    return [=](const Trial& trial, const auto function, const auto form, const int count) {
        const Ring ring(trial);
        send_and_receive(
            trial, numbers(trial.rank(), count), numbers(ring.before(), count), [&](auto* sent, auto* received) {
                arguments([&](const auto... values) { carry_out(trial, function, values..., ring.communicator()); },
                          Shares(form, 1, count), sent, received, count);
            });
    };
}

/// MPI_Neighbor_allgather and MPI_Neighbor_alltoall, which with one neighbour on either side do the same.
constexpr auto neighbor_blocks =
    neighbors([](const auto& call, const auto& /*one*/, auto* sent, auto* received, const int count) {
        call(sent, count, MPI_INT, received, count, MPI_INT);
    });

constexpr auto neighbor_allgathers =
    neighbors([](const auto& call, const auto& one, auto* sent, auto* received, const int count) {
        call(sent, count, MPI_INT, received, one.counts.data(), one.displacements.data(), MPI_INT);
    });

constexpr auto neighbor_alltoalls =
    neighbors([](const auto& call, const auto& one, auto* sent, auto* received, int /*count*/) {
        call(sent, one.counts.data(), one.displacements.data(), MPI_INT, received, one.counts.data(),
             one.displacements.data(), MPI_INT);
    });

constexpr auto typed_neighbor_alltoalls =
    neighbors([](const auto& call, const auto& one, auto* sent, auto* received, int /*count*/) {
        const MPI_Aint displacement = 0;  // of this type in both forms
        const MPI_Datatype type = MPI_INT;
        call(sent, one.counts.data(), &displacement, &type, received, one.counts.data(), &displacement, &type);
    });

// ---- packing -------------------------------------------------------------------------------------------------------

/// What packed data are in, and what the functions take besides the arguments that they have in common.
struct NativeData {
    using Size = int;
    template <typename Form>
    using Position = typename Form::Count;

    static int call(const Trial& trial, const auto function, const auto... arguments) {
        return function(arguments..., trial.communicator());
    }
    static int size(const Trial& trial, const int count, int* const size) {
        return MPI_Pack_size(count, MPI_INT, trial.communicator(), size);
    }
    static constexpr auto pack = [](const auto... arguments) { return MPI_Pack(arguments...); };
    static constexpr auto unpack = [](const auto... arguments) { return MPI_Unpack(arguments...); };
};

struct ExternalData {
    using Size = MPI_Aint;
    template <typename Form>
    using Position = typename Form::ExternalPosition;

    static int call(const Trial& /*trial*/, const auto function, const auto... arguments) {
        return function("external32", arguments...);
    }
    static int size(const Trial& /*trial*/, const int count, MPI_Aint* const size) {
        return MPI_Pack_external_size("external32", count, MPI_INT, size);
    }
    static constexpr auto pack = [](const auto... arguments) { return MPI_Pack_external(arguments...); };
    static constexpr auto unpack = [](const auto... arguments) { return MPI_Unpack_external(arguments...); };
};

/// How many bytes `count` elements are when packed, and a buffer of as many.
template <typename Data>
struct Packed {
    typename Data::Size size = 0;
    Values bytes;

    Packed(const Trial& trial, const int count) {
        trial.require(Data::size(trial, count, &size));
        bytes = blanks(
            static_cast<int>((static_cast<std::size_t>(size) + sizeof(std::int32_t) - 1) / sizeof(std::int32_t)));
    }
};

template <typename Data>
constexpr auto packs = []<typename Form>(const Trial& trial, const auto function, Form /*form*/, const int count) {
    const Integers input = trial.holding(numbers(trial.rank(), count));
    Packed<Data> packed(trial, count);
    const Integers buffer = trial.holding(packed.bytes);
    typename Data::template Position<Form> position = 0;
    trial.require(Data::call(trial, function, input.data(), count, MPI_INT, buffer.data(), packed.size, &position));
    packed.bytes = buffer.read();
    Values output = blanks(count);
    typename Data::Size unpacked = 0;
    trial.require(
        Data::call(trial, Data::unpack, packed.bytes.data(), packed.size, &unpacked, output.data(), count, MPI_INT));
    Trial::expect(output, numbers(trial.rank(), count), "what was packed");
};

template <typename Data>
constexpr auto unpacks = []<typename Form>(const Trial& trial, const auto function, Form /*form*/, const int count) {
    const Values values = numbers(trial.rank(), count);
    Packed<Data> packed(trial, count);
    typename Data::Size written = 0;
    trial.require(
        Data::call(trial, Data::pack, values.data(), count, MPI_INT, packed.bytes.data(), packed.size, &written));
    const Integers buffer = trial.holding(packed.bytes);
    const Integers output = trial.blank(count);
    typename Data::template Position<Form> position = 0;
    trial.require(Data::call(trial, function, buffer.data(), packed.size, &position, output.data(), count, MPI_INT));
    Trial::expect(output, values, "what was unpacked");
};

// ---- one-sided: rank 0 works on the window of rank 1 ---------------------------------------------------------------

class Window {
  public:
    Window(const Trial& trial, const Integers& memory, const int count) : _trial(trial) {
        trial.require(MPI_Win_create(memory.data(), count * static_cast<MPI_Aint>(sizeof(std::int32_t)),
                                     sizeof(std::int32_t), MPI_INFO_NULL, trial.communicator(), &_window));
        trial.require(MPI_Win_set_errhandler(_window, MPI_ERRORS_RETURN));
    }
    ~Window() {
        if (std::uncaught_exceptions() == 0) {
            MPI_Win_free(&_window);
        }
    }
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    /// Rank 0 works on the window of rank 1, and everybody knows when it is done.
    void access(const auto& work) const {
        if (_trial.rank() == 0) {
            _trial.require(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, _window));
            work(_window);
            _trial.require(MPI_Win_unlock(1, _window));
        }
        _trial.barrier();
        // What others have written becomes visible to a rank's own loads.
        _trial.require(MPI_Win_lock(MPI_LOCK_SHARED, _trial.rank(), 0, _window));
        _trial.require(MPI_Win_unlock(_trial.rank(), _window));
    }

  private:
    const Trial& _trial;
    MPI_Win _window = MPI_WIN_NULL;
};

/// Windows hold numbers(1), origins numbers(0); afterwards rank 1's window must hold `window`, rank 0's origin and
/// result what the members say.
struct Outcome {
    Values window;
    Values origin;
    Values result;
};

void one_sided(const Trial& trial, const int count, const Outcome& outcome, const auto& work) {
    const Integers memory = trial.holding(numbers(1, count));
    const Integers origin = trial.holding(numbers(0, count));
    const Integers result = trial.blank(count);
    {
        const Window window(trial, memory, count);
        window.access([&](MPI_Win handle) { work(handle, origin.data(), result.data()); });
    }
    if (trial.rank() == 1) {
        Trial::expect(memory, outcome.window, "the window");
    }
    if (trial.rank() == 0) {
        Trial::expect(origin, outcome.origin, "the origin's buffer");
        Trial::expect(result, outcome.result, "the result");
    }
}

/// MPI_Put and MPI_Get. `whose`: the rank whose data both have afterwards.
template <int whose>
constexpr auto moves = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    one_sided(trial, count, {numbers(whose, count), numbers(whose, count), blanks(count)},
              [&](MPI_Win window, auto* origin, auto*) {
                  carry_out(trial, function, origin, count, MPI_INT, 1, 0, count, MPI_INT, window);
              });
};

constexpr auto accumulates = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    one_sided(trial, count, {sums(1, count), numbers(0, count), blanks(count)},
              [&](MPI_Win window, auto* origin, auto*) {
                  carry_out(trial, function, origin, count, MPI_INT, 1, 0, count, MPI_INT, MPI_SUM, window);
              });
};

constexpr auto fetching_accumulates = [](const Trial& trial, const auto function, auto /*form*/, const int count) {
    one_sided(trial, count, {sums(1, count), numbers(0, count), numbers(1, count)},
              [&](MPI_Win window, auto* origin, auto* result) {
                  carry_out(trial, function, origin, count, MPI_INT, result, count, MPI_INT, 1, 0, count, MPI_INT,
                            MPI_SUM, window);
              });
};

/// These two work on one element, whatever the count.
constexpr auto single_fetches = [](const Trial& trial, const auto function, auto /*form*/, int /*count*/) {
    one_sided(trial, 1, {sums(1, 1), numbers(0, 1), numbers(1, 1)}, [&](MPI_Win window, auto* origin, auto* result) {
        trial.require(function(origin, result, MPI_INT, 1, 0, MPI_SUM, window));
    });
};

constexpr auto swaps = [](const Trial& trial, const auto function, auto /*form*/, int /*count*/) {
    const Integers expected = trial.holding(numbers(1, 1));
    one_sided(trial, 1, {numbers(0, 1), numbers(0, 1), numbers(1, 1)}, [&](MPI_Win window, auto* origin, auto* result) {
        trial.require(function(origin, expected.data(), result, MPI_INT, 1, 0, window));
    });
};

// ---- the table -----------------------------------------------------------------------------------------------------

class Table {
  public:
    void begin_family(const char* const family) { _family = family; }

    template <typename Form, typename F>
    void add(const char* const name, const F& function, const auto& check) {
        Function entry{name, _family, {}};
        if constexpr (bench::kDeclared<F>) {
            if (function != nullptr) {
                entry.check = [function, check](const Trial& trial) {
                    for (const int count : Trial::counts()) {
                        check(trial, function, Form{}, count);
                    }
                };
            }
        }
        entries.push_back(std::move(entry));
    }

    std::vector<Function> entries;

  private:
    const char* _family = "";
};

}  // namespace

std::vector<Function> functions(const bool large_counts) {
    const bench::MpiFunctions& mpi = bench::reached_functions();
    Table table;
    constexpr Completion persistent = Completion::persistent;
// A function with its form for large counts, and one that has none.
#define AWAKEN_PROBE(name, check)                                       \
    AWAKEN_PROBE_SINGLE(name, check)                                    \
    if (large_counts) {                                                 \
        table.add<LargeCounts>("MPI_" #name "_c", mpi.name##_c, check); \
    }
#define AWAKEN_PROBE_SINGLE(name, check) table.add<IntCounts>("MPI_" #name, mpi.name, check);
#define AWAKEN_PROBE_FORMS(name, lower, check) \
    AWAKEN_PROBE(name, check)                  \
    AWAKEN_PROBE(I##lower, check)              \
    AWAKEN_PROBE(name##_init, check)

    table.begin_family("point-to-point");
    AWAKEN_PROBE(Send, sends<>)
    AWAKEN_PROBE(Bsend, buffered_sends<>)
    AWAKEN_PROBE(Ssend, sends<>)
    AWAKEN_PROBE(Rsend, sends<>)
    AWAKEN_PROBE(Isend, sends<>)
    AWAKEN_PROBE(Ibsend, buffered_sends<>)
    AWAKEN_PROBE(Issend, sends<>)
    AWAKEN_PROBE(Irsend, sends<>)
    AWAKEN_PROBE(Send_init, sends<persistent>)
    AWAKEN_PROBE(Bsend_init, buffered_sends<persistent>)
    AWAKEN_PROBE(Ssend_init, sends<persistent>)
    AWAKEN_PROBE(Rsend_init, sends<persistent>)
    AWAKEN_PROBE_SINGLE(Psend_init, partitioned<true>)
    AWAKEN_PROBE(Recv, receives<>)
    AWAKEN_PROBE(Irecv, receives<>)
    AWAKEN_PROBE(Recv_init, receives<persistent>)
    AWAKEN_PROBE_SINGLE(Precv_init, partitioned<false>)
    AWAKEN_PROBE(Mrecv, matched_receives)
    AWAKEN_PROBE(Imrecv, matched_receives)
    AWAKEN_PROBE(Sendrecv, exchanges)
    AWAKEN_PROBE(Isendrecv, exchanges)
    AWAKEN_PROBE(Sendrecv_replace, replacing_exchanges)
    AWAKEN_PROBE(Isendrecv_replace, replacing_exchanges)

    constexpr int root = 0;
    table.begin_family("collective");
    AWAKEN_PROBE_FORMS(Bcast, bcast, broadcast)
    AWAKEN_PROBE_FORMS(Gather, gather, gathers(root))
    AWAKEN_PROBE_FORMS(Gatherv, gatherv, varying_gathers(root))
    AWAKEN_PROBE_FORMS(Scatter, scatter, scatters)
    AWAKEN_PROBE_FORMS(Scatterv, scatterv, varying_scatters)
    AWAKEN_PROBE_FORMS(Allgather, allgather, gathers())
    AWAKEN_PROBE_FORMS(Allgatherv, allgatherv, varying_gathers())
    AWAKEN_PROBE_FORMS(Alltoall, alltoall, alltoalls)
    AWAKEN_PROBE_FORMS(Alltoallv, alltoallv, varying_alltoalls)
    AWAKEN_PROBE_FORMS(Alltoallw, alltoallw, typed_alltoalls)
    AWAKEN_PROBE_FORMS(Reduce, reduce, reductions(every_rank, root))
    AWAKEN_PROBE_FORMS(Allreduce, allreduce, reductions(every_rank))
    AWAKEN_PROBE_FORMS(Reduce_scatter, reduce_scatter, scattered_reductions)
    AWAKEN_PROBE_FORMS(Reduce_scatter_block, reduce_scatter_block, block_reductions)
    AWAKEN_PROBE_FORMS(Scan, scan, reductions(up_to_own_rank))
    AWAKEN_PROBE_FORMS(Exscan, exscan, reductions(before_own_rank))
    AWAKEN_PROBE(Reduce_local, local_reductions)

    table.begin_family("neighbourhood");
    AWAKEN_PROBE_FORMS(Neighbor_allgather, neighbor_allgather, neighbor_blocks)
    AWAKEN_PROBE_FORMS(Neighbor_allgatherv, neighbor_allgatherv, neighbor_allgathers)
    AWAKEN_PROBE_FORMS(Neighbor_alltoall, neighbor_alltoall, neighbor_blocks)
    AWAKEN_PROBE_FORMS(Neighbor_alltoallv, neighbor_alltoallv, neighbor_alltoalls)
    AWAKEN_PROBE_FORMS(Neighbor_alltoallw, neighbor_alltoallw, typed_neighbor_alltoalls)

    table.begin_family("packing");
    AWAKEN_PROBE(Pack, packs<NativeData>)
    AWAKEN_PROBE(Unpack, unpacks<NativeData>)
    AWAKEN_PROBE(Pack_external, packs<ExternalData>)
    AWAKEN_PROBE(Unpack_external, unpacks<ExternalData>)

    table.begin_family("one-sided");
    AWAKEN_PROBE(Put, moves<0>)
    AWAKEN_PROBE(Get, moves<1>)
    AWAKEN_PROBE(Accumulate, accumulates)
    AWAKEN_PROBE(Get_accumulate, fetching_accumulates)
    AWAKEN_PROBE_SINGLE(Fetch_and_op, single_fetches)
    AWAKEN_PROBE_SINGLE(Compare_and_swap, swaps)
    AWAKEN_PROBE(Rput, moves<0>)
    AWAKEN_PROBE(Rget, moves<1>)
    AWAKEN_PROBE(Raccumulate, accumulates)
    AWAKEN_PROBE(Rget_accumulate, fetching_accumulates)
#undef AWAKEN_PROBE
#undef AWAKEN_PROBE_SINGLE
#undef AWAKEN_PROBE_FORMS
    return table.entries;
}

}  // namespace awaken::probe
