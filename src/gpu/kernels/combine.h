// SPDX-License-Identifier: Apache-2.0
// The work of a collective operation that touches every byte: combining the data of several GPUs, and moving it. A
// place is memory of this GPU, or memory of another GPU that is mapped by IPC. No kernel waits for another GPU, but
// for its end in stream order. The host orders the kernels, and a kernel's notice tells the host that the kernel is
// over.
//
// AWAKEN_ONLY_CODE, defined before this text as a number made by code_of, leaves in awaken_combine only the parts that
// this code needs. A run-time compiler then takes a fraction of the time.
#pragma once

#include "codes.h"
#include "copy_bytes.h"
#include "numbers.h"
#include "portable.h"
#include "wait_for_word.h"

// The first is for loops over arrays that are to lie in registers. The second is for loops over targets, which would
// otherwise make up most of the code.
#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__) || defined(__CUDACC__) || defined(__HIPCC__)
#define AWAKEN_UNROLL _Pragma("unroll")
#define AWAKEN_KEEP_LOOP _Pragma("unroll 1")
#else
#define AWAKEN_UNROLL
#define AWAKEN_KEEP_LOOP
#endif

namespace awaken::kernels {

struct Places {
    device_pointer<u8> at[kMostPlaces];
};

struct Move {
    device_pointer<u8> target;
    device_pointer<const u8> source;
    u64 bytes;
};
struct Moves {
    Move list[kMostMoves];
};

/// Tells the host that a kernel is over. The last block to end writes `value` to `word`, after the writes of all blocks
/// have become visible to all GPUs and the host.
struct Notice {
    device_pointer<u32> counter;  ///< a word of this GPU's memory, zero before and after; only one kernel uses it at a
                                  ///< time
    device_pointer<u64> word;     ///< host memory that the GPU reaches; null: a later kernel of the stream gives the
                                  ///< notice
    u64 value;
    /// In stream order the kernel then waits for the notices of other GPUs, see wait_for_word().
    device_pointer<const u32> awaited[kMostAwaited];
    device_pointer<const u32> released;
    u32 awaited_count;
    u32 awaited_number;
};

/// All threads of the block must reach this, after their last write.
///
/// One thread of the block fences for all. If all threads fenced, each would wait for the farthest GPU that it has
/// written to, and the last one would wait once more. But for the last block, the fence need only reach the threads of
/// this GPU: the last block has seen the writes of all others then, and its own release to the host and the other GPUs
/// orders those, too. A fence of the whole system for each block would cost 1.5 us.
AWAKEN_DEVICE void give_notice(const Notice& notice) {
    block_barrier_before_fence();
    if (thread_index().x != 0 || address(notice.word) == 0) {
        return;
    }
    const u32 blocks = grid_size().x * grid_size().y;
    if (blocks > 1) {
        device_fence();
        if (atomic_add(notice.counter, 1U) != blocks - 1) {
            return;
        }
        notice.counter[0] = 0;
    }
    store_release(notice.word, notice.value);
    for (u32 i = 0; i < notice.awaited_count; ++i) {
        wait_for_word(notice.awaited[i], notice.released, notice.awaited_number);
    }
}

/// For a single source: combines nothing.
struct Copy {};
template <typename Operation>
constexpr bool kIsCopy = false;
template <>
constexpr bool kIsCopy<Copy> = true;

/// An unsigned integer of `bytes` bytes.
template <unsigned bytes>
struct Word;
template <>
struct Word<1> {
    using Type = u8;
};
template <>
struct Word<2> {
    using Type = u16;
};
template <>
struct Word<4> {
    using Type = u32;
};
template <>
struct Word<8> {
    using Type = u64;
};

// ---- combining ------------------------------------------------------------------------------------------------------

/// The numbers of a vector, as stored and as opened.
template <typename Numbers>
constexpr unsigned kLanes = 16 / sizeof(typename Numbers::Stored);
template <typename Numbers>
struct StoredLanes {
    typename Numbers::Stored at[kLanes<Numbers>];
};
template <typename Numbers>
struct Lanes {
    typename Numbers::Value at[kLanes<Numbers>];
};

template <typename Numbers>
AWAKEN_DEVICE Lanes<Numbers> opened_lanes(Vector16 vector) {
    const StoredLanes<Numbers> stored = reinterpreted<StoredLanes<Numbers>>(vector);
    Lanes<Numbers> lanes;
    AWAKEN_UNROLL
    for (unsigned i = 0; i < kLanes<Numbers>; ++i) {
        lanes.at[i] = Numbers::opened(stored.at[i]);
    }
    return lanes;
}

template <typename Numbers>
AWAKEN_DEVICE Vector16 closed_lanes(const Lanes<Numbers>& lanes) {
    StoredLanes<Numbers> stored;
    AWAKEN_UNROLL
    for (unsigned i = 0; i < kLanes<Numbers>; ++i) {
        stored.at[i] = Numbers::closed(lanes.at[i]);
    }
    return reinterpreted<Vector16>(stored);
}

/// Combines a further source's vector into `result`.
template <typename Operation, typename Numbers>
AWAKEN_DEVICE void combine_lanes(Lanes<Numbers>& result, Vector16 vector) {
    const Lanes<Numbers> lanes = opened_lanes<Numbers>(vector);
    AWAKEN_UNROLL
    for (unsigned i = 0; i < kLanes<Numbers>; ++i) {
        result.at[i] = Operation::template combined<Numbers>(result.at[i], lanes.at[i]);
    }
}

/// Loads the vectors that lie `offset` bytes into the places from number `first` on. There are `most` of them unless
/// the `count` places end before, and at least `least`.
template <unsigned least, unsigned most>
AWAKEN_DEVICE void load_vectors(Vector16 (&vectors)[most], const Places& places, u32 first, u32 count, u64 offset) {
    AWAKEN_UNROLL
    for (unsigned i = 0; i < most; ++i) {
        if (i < least || first + i < count) {
            vectors[i] = *pointer_cast<const Vector16>(places.at[first + i] + offset);
        }
    }
}

AWAKEN_DEVICE void store_vector(const Places& targets, u32 target_count, u64 offset, Vector16 vector) {
    AWAKEN_KEEP_LOOP
    for (u32 target = 0; target < target_count; ++target) {
        *pointer_cast<Vector16>(targets.at[target] + offset) = vector;
    }
}

/// The number of sources that a thread loads together. It combines further sources in groups of this number.
inline constexpr unsigned kSourceGroup = 8;

/// Combines the vectors at `positions` offsets, `step` bytes apart. A thread loads everything that fits at once before
/// the first store: the memory of another GPU is a microsecond away. There are at least `least` sources and, but for
/// the largest group, at most `most`.
template <typename Operation, typename Numbers, unsigned least, unsigned most, unsigned positions>
AWAKEN_DEVICE void combine_vectors_at(const Places& sources, u32 source_count, const Places& targets, u32 target_count,
                                      u64 offset, u64 step) {
    Vector16 vectors[positions][most] = {};
    AWAKEN_UNROLL
    for (unsigned p = 0; p < positions; ++p) {
        load_vectors<least, most>(vectors[p], sources, 0, source_count, offset + p * step);
    }
    AWAKEN_UNROLL
    for (unsigned p = 0; p < positions; ++p) {
        if constexpr (most == 1) {
            store_vector(targets, target_count, offset + p * step, vectors[p][0]);
        } else {
            Lanes<Numbers> result = opened_lanes<Numbers>(vectors[p][0]);
            AWAKEN_UNROLL
            for (unsigned i = 1; i < most; ++i) {
                if (i < least || i < source_count) {
                    combine_lanes<Operation>(result, vectors[p][i]);
                }
            }
            if constexpr (most == kSourceGroup) {
                for (u32 first = most; first < source_count; first += most) {
                    load_vectors<1, most>(vectors[p], sources, first, source_count, offset + p * step);
                    AWAKEN_UNROLL
                    for (unsigned i = 0; i < most; ++i) {
                        if (i < 1 || first + i < source_count) {
                            combine_lanes<Operation>(result, vectors[p][i]);
                        }
                    }
                }
            }
            store_vector(targets, target_count, offset + p * step, closed_lanes<Numbers>(result));
        }
    }
}

/// Combines the vectors from byte `begin` of the places to byte `end`.
template <typename Operation, typename Numbers, unsigned least, unsigned most, unsigned positions>
AWAKEN_DEVICE void combine_vectors(const Places& sources, u32 source_count, const Places& targets, u32 target_count,
                                   u64 begin, u64 end) {
    const u64 step = total_threads() * 16;
    u64 offset = begin + global_thread() * 16;
    for (; offset + (positions - 1) * step < end; offset += positions * step) {
        combine_vectors_at<Operation, Numbers, least, most, positions>(sources, source_count, targets, target_count,
                                                                       offset, step);
    }
    if constexpr (positions > 1) {
        for (; offset < end; offset += step) {
            combine_vectors_at<Operation, Numbers, least, most, 1>(sources, source_count, targets, target_count, offset,
                                                                   step);
        }
    }
}

/// Combines one by one the elements before number `head` and those from `tail` on.
template <typename Operation, typename Numbers>
AWAKEN_DEVICE void combine_elements(const Places& sources, u32 source_count, const Places& targets, u32 target_count,
                                    u64 head, u64 tail, u64 elements) {
    using Stored = typename Numbers::Stored;
    const u64 count = head + (elements - tail);
    // The last threads begin, since they have no vector when there are few.
    for (u64 i = total_threads() - 1 - global_thread(); i < count; i += total_threads()) {
        const u64 element = i < head ? i : i - head + tail;
        Stored stored = pointer_cast<const Stored>(sources.at[0])[element];
        if constexpr (!kIsCopy<Operation>) {
            auto result = Numbers::opened(stored);
            for (u32 source = 1; source < source_count; ++source) {
                result = Operation::template combined<Numbers>(
                    result, Numbers::opened(pointer_cast<const Stored>(sources.at[source])[element]));
            }
            stored = Numbers::closed(result);
        }
        AWAKEN_KEEP_LOOP
        for (u32 target = 0; target < target_count; ++target) {
            pointer_cast<Stored>(targets.at[target])[element] = stored;
        }
    }
}

/// Does all of it by one operation, on vectors where the places allow that.
template <typename Operation, typename Element, typename Lane>
AWAKEN_DEVICE void combine_places(const Places& sources, u32 source_count, const Places& targets, u32 target_count,
                                  u64 elements) {
    constexpr unsigned kBytes = sizeof(typename Element::Stored);
    u64 differences = 0;
    for (u32 source = 0; source < source_count; ++source) {
        differences |= address(sources.at[source]) ^ address(targets.at[0]);
    }
    for (u32 target = 1; target < target_count; ++target) {
        differences |= address(targets.at[target]) ^ address(targets.at[0]);
    }
    const unsigned head_bytes = (16 - (unsigned)(address(targets.at[0]) & 15)) & 15;
    u64 head = elements;
    u64 vectors = 0;
    // Elements of several parts may be aligned to the parts only. They then lie across all vectors.
    if ((differences & 15) == 0 && head_bytes % kBytes == 0) {
        if (head_bytes / kBytes < elements) {
            head = head_bytes / kBytes;
        }
        vectors = (elements - head) * kBytes / 16;
    }
    const u64 begin = head * kBytes;
    const u64 end = begin + vectors * 16;
    combine_elements<Operation, Element>(sources, source_count, targets, target_count, head, end / kBytes, elements);
    if constexpr (kIsCopy<Operation>) {
        combine_vectors<Operation, Lane, 1, 1, 8>(sources, source_count, targets, target_count, begin, end);
    } else if (source_count <= 2) {
        combine_vectors<Operation, Lane, 2, 2, 4>(sources, source_count, targets, target_count, begin, end);
    } else if (source_count <= 4) {
        combine_vectors<Operation, Lane, 3, 4, 2>(sources, source_count, targets, target_count, begin, end);
    } else {
        combine_vectors<Operation, Lane, 5, 8, 1>(sources, source_count, targets, target_count, begin, end);
    }
}

/// Does what awaken_combine does, for one code.
template <unsigned code>
AWAKEN_DEVICE void combine_code(const Places& sources, u32 source_count, const Places& targets, u32 target_count,
                                u64 elements) {
    constexpr ElementType kType = type_of(code);
    constexpr ReductionOperation kOperation = operation_of(code);
    static_assert(is_defined(kType, kOperation), "MPI has no such operation on this type");
    if constexpr (kOperation != ReductionOperation::copy) {
        if (source_count > 1) {
            using Chosen = Reduction<kType, kOperation>;
            constexpr unsigned kParts = element_bytes(kType) / sizeof(typename Chosen::Element::Stored);
            combine_places<typename Chosen::Operation, typename Chosen::Element, typename Chosen::Lane>(
                sources, source_count, targets, target_count, elements * kParts);
            return;
        }
    }
    // Works on words that are not longer than the places' alignment.
    using Unit = Plain<typename Word<element_alignment(kType)>::Type>;
    combine_places<Copy, Unit, Plain<u64>>(sources, 1, targets, target_count,
                                           elements * (element_bytes(kType) / element_alignment(kType)));
}

/// Finds `code` among the `count` codes from `first` on. Does nothing for a code that is not defined.
template <unsigned first, unsigned count>
AWAKEN_DEVICE void combine_any(u32 code, const Places& sources, u32 source_count, const Places& targets,
                               u32 target_count, u64 elements) {
    if constexpr (count > 1) {
        constexpr unsigned kHalf = count / 2;
        if (code < first + kHalf) {
            combine_any<first, kHalf>(code, sources, source_count, targets, target_count, elements);
        } else {
            combine_any<first + kHalf, count - kHalf>(code, sources, source_count, targets, target_count, elements);
        }
    } else if constexpr (is_defined(type_of(first), operation_of(first))) {
        if (code == first) {
            combine_code<first>(sources, source_count, targets, target_count, elements);
        }
    }
}

/// Computes target[t][i] = source[0][i] op source[1][i] op ..., from left to right, for all i < elements and all
/// targets. Copies a single source, whatever the operation is. Both numbers of places are 1 to kMostPlaces. `code` is
/// made by code_of, and equals AWAKEN_ONLY_CODE where that is defined. Places are aligned as element_alignment says.
/// Where all places have the same distance to a multiple of 16 bytes, the kernel combines whole vectors. A target may
/// be a source, but must not overlap one partly. Launch with any number of threads in x.
AWAKEN_KERNEL(awaken_combine, Places sources, u32 source_count, Places targets, u32 target_count, u64 elements,
              u32 code, Notice notice) {
#ifdef AWAKEN_ONLY_CODE
    (void)code;
    combine_code<AWAKEN_ONLY_CODE>(sources, source_count, targets, target_count, elements);
#else
    combine_any<0, kElementTypes * 16>(code, sources, source_count, targets, target_count, elements);
#endif
    give_notice(notice);
}

/// Does the first `count` moves. Source and target of a move may have any alignment and must not overlap. The bytes
/// that one move writes must not overlap those that another move reads or writes. Launch with any number of threads in
/// x and `count` blocks in y; each block in y does one move.
AWAKEN_KERNEL(awaken_move, Moves moves, u32 count, Notice notice) {
    const u32 number = block_index().y;
    if (number < count) {
        copy_bytes(moves.list[number].target, moves.list[number].source, moves.list[number].bytes);
    }
    give_notice(notice);
}

}  // namespace awaken::kernels
