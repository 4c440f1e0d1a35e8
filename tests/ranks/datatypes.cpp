// SPDX-License-Identifier: Apache-2.0
// Derived datatypes on every mix of buffer kinds: the bytes of the type travel, the gaps stay.
#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

#include "support.h"
#include "types.h"

using namespace ranks;

namespace {

constexpr int kTag = 13;

struct Named {
    std::string name;
    std::function<Type()> create;
    MPI_Datatype basic;        ///< what the type consists of, when it is one basic type; else MPI_DATATYPE_NULL
    int most_apart = INT_MAX;  ///< elements, one after the other, of which no two have a byte in common
};

struct Pairlike {
    double value;
    int index;
};

std::vector<Named> types() {
    std::vector<Named> list;
    const auto add = [&](const std::string& name, MPI_Datatype basic, auto create) {
        list.push_back({name, [create] { return make(create); }, basic});
    };
    add("contiguous", MPI_INT, [](MPI_Datatype* t) { return MPI_Type_contiguous(7, MPI_INT, t); });
    add("vector", MPI_DOUBLE, [](MPI_Datatype* t) { return MPI_Type_vector(9, 3, 5, MPI_DOUBLE, t); });
    add("vector_backwards", MPI_INT, [](MPI_Datatype* t) {
        MPI_Datatype backwards;
        MPI_Type_vector(6, 2, -4, MPI_INT, &backwards);
        const int length = 1;
        const MPI_Aint displacement = 30 * static_cast<MPI_Aint>(sizeof(int));
        const int code = MPI_Type_create_struct(1, &length, &displacement, &backwards, t);
        MPI_Type_free(&backwards);
        return code;
    });
    add("hvector", MPI_SHORT, [](MPI_Datatype* t) { return MPI_Type_create_hvector(11, 3, 10, MPI_SHORT, t); });
    add("indexed", MPI_INT, [](MPI_Datatype* t) {
        const int lengths[] = {2, 0, 5, 1, 3};
        const int displacements[] = {4, 100, 10, 0, 20};
        return MPI_Type_indexed(5, lengths, displacements, MPI_INT, t);
    });
    add("hindexed", MPI_FLOAT, [](MPI_Datatype* t) {
        const int lengths[] = {1, 4, 2};
        const MPI_Aint displacements[] = {64, 4, 40};
        return MPI_Type_create_hindexed(3, lengths, displacements, MPI_FLOAT, t);
    });
    add("indexed_block", MPI_DOUBLE, [](MPI_Datatype* t) {
        const int displacements[] = {7, 1, 4, 12};
        return MPI_Type_create_indexed_block(4, 2, displacements, MPI_DOUBLE, t);
    });
    add("hindexed_block", MPI_INT, [](MPI_Datatype* t) {
        const MPI_Aint displacements[] = {80, 8, 40};
        return MPI_Type_create_hindexed_block(3, 3, displacements, MPI_INT, t);
    });
    add("struct_with_gaps", MPI_DATATYPE_NULL, [](MPI_Datatype* t) {
        const int lengths[] = {3, 1, 5};
        const MPI_Aint displacements[] = {2, 16, 33};
        const MPI_Datatype members[] = {MPI_CHAR, MPI_DOUBLE, MPI_CHAR};
        return MPI_Type_create_struct(3, lengths, displacements, members, t);
    });
    add("struct_resized", MPI_DATATYPE_NULL, [](MPI_Datatype* t) {
        const int lengths[] = {1, 1};
        const MPI_Aint displacements[] = {offsetof(Pairlike, value), offsetof(Pairlike, index)};
        const MPI_Datatype members[] = {MPI_DOUBLE, MPI_INT};
        MPI_Datatype bare;
        MPI_Type_create_struct(2, lengths, displacements, members, &bare);
        const int code = MPI_Type_create_resized(bare, 0, sizeof(Pairlike) + 8, t);
        MPI_Type_free(&bare);
        return code;
    });
    add("resized_negative_lower_bound", MPI_INT, [](MPI_Datatype* t) {
        MPI_Datatype vector;
        MPI_Type_vector(3, 1, 2, MPI_INT, &vector);
        const int code = MPI_Type_create_resized(vector, -12, 40, t);
        MPI_Type_free(&vector);
        return code;
    });
    add("overlapping_extent", MPI_INT, [](MPI_Datatype* t) {
        // Element i + 1 starts inside of element i: columns of a matrix that interleave.
        MPI_Datatype column;
        MPI_Type_vector(5, 1, 8, MPI_INT, &column);
        const int code = MPI_Type_create_resized(column, 0, sizeof(int), t);
        MPI_Type_free(&column);
        return code;
    });
    list.back().most_apart = 8;
    for (const int order : {MPI_ORDER_C, MPI_ORDER_FORTRAN}) {
        add(order == MPI_ORDER_C ? "subarray_c" : "subarray_fortran", MPI_FLOAT, [order](MPI_Datatype* t) {
            const int sizes[] = {6, 7, 5}, subsizes[] = {3, 4, 2}, starts[] = {1, 2, 3};
            return MPI_Type_create_subarray(3, sizes, subsizes, starts, order, MPI_FLOAT, t);
        });
        add(order == MPI_ORDER_C ? "darray_c" : "darray_fortran", MPI_INT, [order](MPI_Datatype* t) {
            const int sizes[] = {12, 10}, arguments[] = {2, MPI_DISTRIBUTE_DFLT_DARG}, grid[] = {2, 2};
            const int distribution[] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_BLOCK};
            return MPI_Type_create_darray(4, 1, 2, sizes, distribution, arguments, grid, order, MPI_INT, t);
        });
    }
    add("dup", MPI_DOUBLE, [](MPI_Datatype* t) {
        MPI_Datatype vector;
        MPI_Type_vector(4, 1, 3, MPI_DOUBLE, &vector);
        const int code = MPI_Type_dup(vector, t);
        MPI_Type_free(&vector);
        return code;
    });
    add("nested", MPI_DATATYPE_NULL, [](MPI_Datatype* t) {
        MPI_Datatype inner, vector;
        const int lengths[] = {1, 2};
        const MPI_Aint displacements[] = {0, 12};
        const MPI_Datatype members[] = {MPI_INT, MPI_SHORT};
        MPI_Type_create_struct(2, lengths, displacements, members, &inner);
        MPI_Type_vector(3, 2, 4, inner, &vector);
        const int blocks[] = {2, 1};
        const int at[] = {0, 3};
        const int code = MPI_Type_indexed(2, blocks, at, vector, t);
        MPI_Type_free(&inner);
        MPI_Type_free(&vector);
        return code;
    });
    add("double_int", MPI_DATATYPE_NULL, [](MPI_Datatype* t) { return MPI_Type_dup(MPI_DOUBLE_INT, t); });
    add("short_int", MPI_DATATYPE_NULL, [](MPI_Datatype* t) { return MPI_Type_dup(MPI_SHORT_INT, t); });
    add("matrix_transposed", MPI_INT, [](MPI_Datatype* t) {
        MPI_Datatype column, resized, matrix;
        MPI_Type_vector(40, 1, 30, MPI_INT, &column);
        MPI_Type_create_resized(column, 0, sizeof(int), &resized);
        MPI_Type_contiguous(30, resized, &matrix);
        // The next element is the next matrix: elements that overlap must not be received.
        const int code = MPI_Type_create_resized(matrix, 0, 40 * 30 * sizeof(int), t);
        MPI_Type_free(&column);
        MPI_Type_free(&resized);
        MPI_Type_free(&matrix);
        return code;
    });
    return list;
}

std::byte* typed_buffer(Run& run, MPI_Datatype type, int count) {
    const Room room(type, count);
    return run.input(room.bytes) + room.origin;
}

void note(Run& run, const std::string& name, const MPI_Status& status, MPI_Datatype type) {
    run.note_status(name, status, type);
    MPI_Count elements = 0;
    MPI_Get_elements_x(&status, type, &elements);
    run.note(name + " elements_x", static_cast<long long>(elements));
}

/// The type on both sides, in every kind of transfer.
void same_type(Run& run, const Named& named) {
    const Ring ring(run);
    const Pair pair(run);
    const Type type = named.create();
    for (const int count : {1, 2, 5}) {
        MPI_Status status{};
        std::byte* out = typed_buffer(run, type, count);
        std::byte* in = typed_buffer(run, type, count);
        OK(MPI_Sendrecv(out, count, type, ring.next, kTag, in, count, type, ring.previous, kTag, run.comm, &status));
        note(run, "sendrecv", status, type);
        std::byte* both = typed_buffer(run, type, count);
        OK(MPI_Sendrecv_replace(both, count, type, ring.next, kTag, ring.previous, kTag, run.comm, &status));
        MPI_Request requests[2];
        std::byte* in2 = typed_buffer(run, type, count);
        OK(MPI_Irecv(in2, count, type, ring.previous, kTag, run.comm, &requests[0]));
        OK(MPI_Isend(out, count, type, ring.next, kTag, run.comm, &requests[1]));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        std::byte* buffer = typed_buffer(run, type, count + 2);
        if (pair.sender) {
            OK(MPI_Ssend(buffer, count, type, pair.peer, kTag, run.comm));
        }
        if (pair.receiver) {
            OK(MPI_Recv(buffer, count + 2, type, pair.peer, kTag, run.comm, &status));
            note(run, "fewer than room for", status, type);
        }
        // Collectives see the same layouts.
        std::byte* shared = typed_buffer(run, type, count);
        OK(MPI_Bcast(shared, count, type, run.size - 1, run.comm));
        MPI_Aint lower, extent;
        MPI_Type_get_extent(type, &lower, &extent);
        std::byte* mine = typed_buffer(run, type, count);
        std::byte* gathered = typed_buffer(run, type, count * run.size + 3);
        // A collective must not write anything twice, so no more elements than can interleave.
        if (count * run.size > named.most_apart) {
            continue;
        }
        OK(MPI_Gather(mine, count, type, gathered, count, type, 0, run.comm));
    }
}

/// Equal signatures, different layouts on the two sides.
void other_type(Run& run, const Named& named) {
    const Pair pair(run);
    const Type type = named.create();
    int size = 0, basic_size = 0;
    MPI_Type_size(type, &size);
    MPI_Type_size(named.basic, &basic_size);
    const int elements = size / basic_size;
    const Type strided = make([&](MPI_Datatype* t) { return MPI_Type_vector(elements * 3, 1, 2, named.basic, t); });
    for (const bool typed_sender : {true, false}) {
        // 1: contiguous basic elements; 2: a strided type for three elements at once.
        for (const int other : {1, 2}) {
            MPI_Status status{};
            const bool typed = pair.sender == typed_sender;
            const MPI_Datatype mine = typed ? MPI_Datatype(type) : other == 1 ? named.basic : MPI_Datatype(strided);
            const int count = typed ? 3 : other == 1 ? 3 * elements : 1;
            std::byte* buffer = typed_buffer(run, mine, count);
            if (pair.sender) {
                OK(MPI_Send(buffer, count, mine, pair.peer, kTag, run.comm));
            }
            if (pair.receiver) {
                OK(MPI_Recv(buffer, count, mine, pair.peer, kTag, run.comm, &status));
                note(run, "other", status, mine);
            }
        }
    }
}

/// A message that ends inside of an element of the receiver's type.
void partial(Run& run, const Named& named) {
    const Pair pair(run);
    const Type type = named.create();
    int size = 0, basic_size = 0;
    MPI_Type_size(type, &size);
    MPI_Type_size(named.basic, &basic_size);
    const int elements = size / basic_size;
    for (const int sent : {1, elements - 1, elements, elements + 1, 2 * elements + elements / 2}) {
        if (sent < 1) {
            continue;
        }
        MPI_Status status{};
        if (pair.sender) {
            std::byte* buffer = typed_buffer(run, named.basic, sent);
            OK(MPI_Send(buffer, sent, named.basic, pair.peer, kTag, run.comm));
        } else {
            std::byte* buffer = typed_buffer(run, type, 3);
            if (!pair.receiver) {
                continue;
            }
            OK(MPI_Recv(buffer, 3, type, pair.peer, kTag, run.comm, &status));
            note(run, format("%d basic elements", sent), status, type);
        }
    }
}

void packing(Run& run, const Named& named) {
    const Type type = named.create();
    constexpr int kCount = 3;
    int bytes = 0, position = 0;
    OK(MPI_Pack_size(kCount, type, run.comm, &bytes));
    std::byte* data = typed_buffer(run, type, kCount);
    std::byte* packed = run.input(static_cast<std::size_t>(bytes) + 64);
    std::byte* unpacked = typed_buffer(run, type, kCount);
    position = 5;
    OK(MPI_Pack(data, kCount, type, packed, bytes + 64, &position, run.comm));
    run.note("packed up to", position);
    position = 5;
    OK(MPI_Unpack(packed, bytes + 64, &position, unpacked, kCount, type, run.comm));
    run.note("unpacked up to", position);
    // What is packed may be sent as MPI_PACKED and received as the type.
    const Ring ring(run);
    std::byte* fresh = run.input(static_cast<std::size_t>(bytes));
    std::byte* in = typed_buffer(run, type, kCount);
    position = 0;
    OK(MPI_Pack(data, kCount, type, fresh, bytes, &position, run.comm));
    OK(MPI_Sendrecv(fresh, position, MPI_PACKED, ring.next, kTag, in, kCount, type, ring.previous, kTag, run.comm,
                    MPI_STATUS_IGNORE));
    if (named.basic == MPI_DATATYPE_NULL) {
        return;  // MPICH 5.0.2 aborts in Pack_external_size of mixed types
    }
    MPI_Aint external_bytes = 0, external_position = 0;
    OK(MPI_Pack_external_size("external32", kCount, type, &external_bytes));
    std::byte* external = run.input(static_cast<std::size_t>(external_bytes));
    OK(MPI_Pack_external("external32", data, kCount, type, external, external_bytes, &external_position));
    run.note("external up to", static_cast<long long>(external_position));
    std::byte* from_external = typed_buffer(run, type, kCount);
    external_position = 0;
    OK(MPI_Unpack_external("external32", external, external_bytes, &external_position, from_external, kCount, type));
}

/// MPI_BOTTOM with absolute addresses: blocks of one message in several buffers of different kinds.
void bottom(Run& run) {
    const Ring ring(run);
    const auto scattered = [&](bool shuffled) {
        std::array<std::byte*, 4> parts;
        for (std::byte*& part : parts) {
            part = run.input(4000);
        }
        std::array<MPI_Aint, 4> addresses;
        for (std::size_t at = 0; at < 4; ++at) {
            MPI_Get_address(parts[at] + 8 * at, &addresses[at]);
        }
        if (shuffled) {
            std::swap(addresses[0], addresses[2]);
        }
        const std::array<int, 4> lengths = {100, 7, 450, 33};
        const std::array<MPI_Datatype, 4> members = {MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE};
        return make([&](MPI_Datatype* t) {
            return MPI_Type_create_struct(4, lengths.data(), addresses.data(), members.data(), t);
        });
    };
    const Type from = scattered(false), to = scattered(true);
    MPI_Status status{};
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, from, ring.next, kTag, MPI_BOTTOM, 1, to, ring.previous, kTag, run.comm, &status));
    note(run, "absolute both", status, to);
    std::byte* plain = run.input(590 * sizeof(double));
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, from, ring.next, kTag, plain, 590, MPI_DOUBLE, ring.previous, kTag, run.comm,
                    &status));
    const Type second = scattered(true);
    OK(MPI_Sendrecv(plain, 590, MPI_DOUBLE, ring.next, kTag, MPI_BOTTOM, 1, second, ring.previous, kTag, run.comm,
                    &status));
    const Type third = scattered(false);
    OK(MPI_Bcast(MPI_BOTTOM, 1, third, 0, run.comm));
    const Type fourth = scattered(false);
    std::byte* all = run.input(590 * sizeof(double) * static_cast<std::size_t>(run.size));
    OK(MPI_Allgather(MPI_BOTTOM, 1, fourth, all, 590, MPI_DOUBLE, run.comm));
    const Type fifth = scattered(true);
    MPI_Request requests[2];
    OK(MPI_Recv_init(MPI_BOTTOM, 1, fifth, ring.previous, kTag, run.comm, &requests[0]));
    OK(MPI_Send_init(MPI_BOTTOM, 1, fourth, ring.next, kTag, run.comm, &requests[1]));
    OK(MPI_Startall(2, requests));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    OK(MPI_Request_free(&requests[0]));
    OK(MPI_Request_free(&requests[1]));
}

/// Two allocations of which one begins where the other ends: for the datatype their blocks are one run, for a GPU's
/// copies they are not.
void touching(Run& run) {
    const Ring ring(run);
    constexpr std::size_t kBytes = 64 * 1024, kAllocations = 16, kBoth = 2 * kBytes;
    Gpu& gpu = run.gpu();
    const Kind kind = run.reference() || !gpu.present() ? Kind::host : Kind::device;
    std::vector<std::byte*> allocations(kAllocations);
    for (std::byte*& allocation : allocations) {
        allocation = static_cast<std::byte*>(gpu.allocate(kind, kBytes));
    }
    std::sort(allocations.begin(), allocations.end());
    std::size_t at = 0;
    while (at + 2 < kAllocations && allocations[at] + kBytes != allocations[at + 1]) {
        ++at;
    }
    const std::array<std::byte*, 2> parts = {allocations[at], allocations[at + 1]};

    const auto content_of = [](int rank) {
        std::vector<std::byte> content(kBoth);
        fill_random(content.data(), kBoth, combine(71, rank));
        return content;
    };
    const auto store = [&](std::byte* part, const std::byte* content) {
        host_accessible(kind) ? void(std::memcpy(part, content, kBytes)) : gpu.write(part, content, kBytes);
    };
    const auto load = [&](std::byte* content, const std::byte* part) {
        host_accessible(kind) ? void(std::memcpy(content, part, kBytes)) : gpu.read(content, part, kBytes);
    };
    const auto write = [&](const std::vector<std::byte>& content) {
        for (std::size_t part = 0; part < 2; ++part) {
            store(parts[part], &content[part * kBytes]);
        }
    };
    const auto expect = [&](const std::vector<std::byte>& content, const char* what) {
        std::vector<std::byte> found(kBoth);
        for (std::size_t part = 0; part < 2; ++part) {
            load(&found[part * kBytes], parts[part]);
        }
        run.expect(found == content, format("%s: the parts are wrong", what));
    };
    const std::vector<std::byte> mine = content_of(run.rank), theirs = content_of(ring.previous);
    std::array<MPI_Aint, 2> addresses;
    for (std::size_t part = 0; part < 2; ++part) {
        MPI_Get_address(parts[part], &addresses[part]);
    }
    // Not from MPI_BOTTOM, which MPICH 4.0 refuses in MPI_Pack.
    addresses = {0, MPI_Aint_diff(addresses[1], addresses[0])};
    const std::array<int, 2> lengths = {kBytes, kBytes};
    const std::array<MPI_Datatype, 2> members = {MPI_BYTE, MPI_BYTE};
    const Type both = make([&](MPI_Datatype* t) {
        return MPI_Type_create_struct(2, lengths.data(), addresses.data(), members.data(), t);
    });

    std::byte* packed = run.output<std::byte>(kBoth);
    int position = 0;
    write(mine);
    OK(MPI_Pack(parts[0], 1, both, packed, kBoth, &position, run.comm));
    write(theirs);
    position = 0;
    OK(MPI_Unpack(packed, kBoth, &position, parts[0], 1, both, run.comm));
    expect(mine, "unpacked");

    std::byte* plain = run.output<std::byte>(kBoth);
    OK(MPI_Sendrecv(parts[0], 1, both, ring.next, kTag, plain, kBoth, MPI_BYTE, ring.previous, kTag, run.comm,
                    MPI_STATUS_IGNORE));
    OK(MPI_Sendrecv(plain, kBoth, MPI_BYTE, ring.previous, kTag, parts[0], 1, both, ring.next, kTag, run.comm,
                    MPI_STATUS_IGNORE));
    expect(mine, "sent round and back");
    OK(MPI_Sendrecv_replace(parts[0], 1, both, ring.next, kTag, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
    expect(theirs, "replaced");
    OK(MPI_Bcast(parts[0], 1, both, run.size - 1, run.comm));
    expect(content_of((2 * run.size - 2) % run.size), "broadcast");
    for (std::byte* allocation : allocations) {
        gpu.free(kind, allocation);
    }
}

/// The layer may remember a type's layout, but handles of freed types come back for other types.
void recycled_handles(Run& run) {
    const Ring ring(run);
    for (int round = 0; round < 12; ++round) {
        const Type type =
            make([&](MPI_Datatype* t) { return MPI_Type_vector(3 + round % 4, 1 + round % 3, 5, MPI_INT, t); });
        std::byte* out = typed_buffer(run, type, 2);
        std::byte* in = typed_buffer(run, type, 2);
        OK(MPI_Sendrecv(out, 2, type, ring.next, kTag, in, 2, type, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
    }
    // A type that is freed while an operation with it is pending.
    std::byte* out = run.input(4000);
    std::byte* in = run.input(4000);
    MPI_Request requests[2];
    {
        const Type type = make([](MPI_Datatype* t) { return MPI_Type_vector(100, 1, 3, MPI_INT, t); });
        OK(MPI_Irecv(in, 2, type, ring.previous, kTag, run.comm, &requests[0]));
        OK(MPI_Isend(out, 2, type, ring.next, kTag, run.comm, &requests[1]));
    }
    const Type other = make([](MPI_Datatype* t) { return MPI_Type_contiguous(3, MPI_DOUBLE, t); });
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    std::byte* out2 = run.input(4000);
    std::byte* in2 = run.input(4000);
    MPI_Request persistent[2];
    {
        const Type type = make([](MPI_Datatype* t) { return MPI_Type_vector(50, 2, 5, MPI_INT, t); });
        OK(MPI_Recv_init(in2, 2, type, ring.previous, kTag, run.comm, &persistent[0]));
        OK(MPI_Send_init(out2, 2, type, ring.next, kTag, run.comm, &persistent[1]));
    }
    OK(MPI_Startall(2, persistent));
    OK(MPI_Waitall(2, persistent, MPI_STATUSES_IGNORE));
    OK(MPI_Request_free(&persistent[0]));
    OK(MPI_Request_free(&persistent[1]));
}

/// Megabytes in many small blocks, and in few large ones.
void large_strided(Run& run) {
    const Ring ring(run);
    const Type column = make([](MPI_Datatype* t) { return MPI_Type_vector(40000, 1, 3, MPI_DOUBLE, t); });
    const Type rows = make([](MPI_Datatype* t) { return MPI_Type_vector(6, 50000, 70000, MPI_INT, t); });
    for (const MPI_Datatype type : {MPI_Datatype(column), MPI_Datatype(rows)}) {
        std::byte* out = typed_buffer(run, type, 1);
        std::byte* in = typed_buffer(run, type, 1);
        OK(MPI_Sendrecv(out, 1, type, ring.next, kTag, in, 1, type, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
    }
    // 100000 blocks of irregular lengths.
    std::vector<int> lengths, displacements;
    int at = 0;
    for (std::uint64_t block = 0; block < 20000; ++block) {
        lengths.push_back(static_cast<int>(mix_bits(block) % 3));
        displacements.push_back(at);
        at += lengths.back() + static_cast<int>(mix_bits(block + 77) % 3);
    }
    const Type irregular = make([&](MPI_Datatype* t) {
        return MPI_Type_indexed(static_cast<int>(lengths.size()), lengths.data(), displacements.data(), MPI_SHORT, t);
    });
    std::byte* out = typed_buffer(run, irregular, 2);
    std::byte* in = typed_buffer(run, irregular, 2);
    OK(MPI_Sendrecv(out, 2, irregular, ring.next, kTag, in, 2, irregular, ring.previous, kTag, run.comm,
                    MPI_STATUS_IGNORE));
}

/// Types truncated: the error, and nothing beyond the room.
void truncated(Run& run) {
    const Pair pair(run);
    const Type type = make([](MPI_Datatype* t) { return MPI_Type_vector(10, 1, 2, MPI_INT, t); });
    std::byte* buffer = typed_buffer(run, type, 4);
    if (pair.sender) {
        OK(MPI_Send(buffer, 4, type, pair.peer, kTag, run.comm));
    }
    if (pair.receiver) {
        const int code = MPI_Recv(buffer, 2, type, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE);
        run.note("class", error_class(code));
        run.expect(error_class(code) == MPI_ERR_TRUNCATE, "a typed receive that is too short gives MPI_ERR_TRUNCATE");
    }
}

#if RANKS_HAVE_LARGE_COUNT
void large_count_constructors(Run& run) {
    const Ring ring(run);
    const MPI_Count lengths[] = {3, 1}, displacements[] = {8, 64};
    const MPI_Datatype members[] = {MPI_INT, MPI_DOUBLE};
    const MPI_Count sizes[] = {8, 9}, subsizes[] = {3, 4}, starts[] = {2, 1};
    const MPI_Count block_displacements[] = {5, 0, 11};
    std::vector<Type> list;
    list.push_back(make([](MPI_Datatype* t) { return MPI_Type_vector_c(5, 2, 4, MPI_INT, t); }));
    list.push_back(
        make([&](MPI_Datatype* t) { return MPI_Type_create_struct_c(2, lengths, displacements, members, t); }));
    list.push_back(make([&](MPI_Datatype* t) {
        return MPI_Type_create_subarray_c(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, t);
    }));
    list.push_back(make(
        [&](MPI_Datatype* t) { return MPI_Type_create_indexed_block_c(3, 2, block_displacements, MPI_SHORT, t); }));
    list.push_back(make([](MPI_Datatype* t) { return MPI_Type_create_hvector_c(4, 1, 24, MPI_DOUBLE, t); }));
    for (const Type& type : list) {
        std::byte* out = typed_buffer(run, type, 3);
        std::byte* in = typed_buffer(run, type, 3);
        OK(MPI_Sendrecv_c(out, 3, type, ring.next, kTag, in, 3, type, ring.previous, kTag, run.comm,
                          MPI_STATUS_IGNORE));
    }
}
#endif

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    for (const Named& named : types()) {
        suite.add("same_" + named.name, [named](Run& run) { same_type(run, named); }, 1);
        if (named.basic != MPI_DATATYPE_NULL) {
            suite.add("other_" + named.name, [named](Run& run) { other_type(run, named); });
            suite.add("partial_" + named.name, [named](Run& run) { partial(run, named); });
        }
        suite.add("pack_" + named.name, [named](Run& run) { packing(run, named); }, 1);
    }
    suite.add("bottom", bottom);
    suite.add("touching", touching, 1);
    suite.add("recycled_handles", recycled_handles, 1);
    suite.add("large_strided", large_strided, 2, Weight::heavy);
    suite.add("truncated", truncated);
#if RANKS_HAVE_LARGE_COUNT
    suite.add("large_count_constructors", large_count_constructors);
#endif
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
