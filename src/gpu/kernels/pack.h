// SPDX-License-Identifier: Apache-2.0
// Datatypes with gaps. The kernels move bytes between strided blocks, or a list of entries, and consecutive memory.
//
// The bytes of a datatype have an order, in which they travel. A position counts bytes in that order. Every kernel
// moves positions [start, start + bytes) of a shape or list, so that a message may be packed in parts. Blocks and
// entries that a kernel writes must not overlap. Either side may be device memory, memory of another process that is
// mapped here, or pinned host memory. Launch with any number of blocks of kPackThreads threads in x.
//
// Compiling the whole text takes seconds, so the library compiles it in parts. With AWAKEN_PACK_PART defined as 1
// (shapes and lines), 2 (shapes and shapes) or 3 (lists) the text has only the kernels of that part.
#pragma once

#include "portable.h"

namespace awaken::kernels {

inline constexpr unsigned kPackThreads = 256;
/// Loops around the blocks of a Shape.
inline constexpr unsigned kShapeLoops = 4;
/// Units that a thread has under way, so that few threads keep many bytes moving.
inline constexpr unsigned kPackBatch = 4;

/// Blocks of `width` bytes at base + i[0] * strides[0] + i[1] * strides[1] + ..., for i[0] in [0, counts[0]) innermost.
struct Shape {
    u64 base;
    u64 width;
    u64 counts[kShapeLoops];
    i64 strides[kShapeLoops];  ///< may be negative; 0 where the count is 1
};

/// One entry of a list: rows of `width` bytes, `pitch` apart.
struct PackEntry {
    i64 offset;    ///< of the first row, from the element's address
    i64 pitch;     ///< may be negative; 0 for a single row
    u64 position;  ///< of its first byte in the element
    u32 width;
    u32 rows;
};

/// The element of a datatype as a list, repeated.
struct EntryList {
    u64 base;    ///< address of element 0
    i64 extent;  ///< from one element to the next
    u64 size;    ///< bytes of data of one
    device_pointer<const PackEntry> entries;
    u64 entries_per_element;
};

/// The largest power of two, at most 16, that divides everything whose bits are in `bits`.
AWAKEN_DEVICE u64 common_unit(u64 bits) {
    bits |= 16;
    return bits & (~bits + 1);
}

/// Divisions of 64 bits take a GPU a hundred instructions. Most numbers here are small, or smaller than the divisor.
AWAKEN_DEVICE u64 divide(u64 number, u64 divisor, u64& remainder) {
    if (number < divisor) {
        remainder = number;
        return 0;
    }
    if (((number | divisor) >> 32) == 0) {
        const u32 quotient = (u32)number / (u32)divisor;
        remainder = number - (u64)quotient * divisor;
        return quotient;
    }
    const u64 quotient = number / divisor;
    remainder = number - quotient * divisor;
    return quotient;
}

AWAKEN_DEVICE u64 alignment_of(const Shape& shape) {
    u64 bits = shape.base | shape.width;
    for (unsigned i = 0; i < kShapeLoops; ++i) {
        bits |= (u64)shape.strides[i];
    }
    return bits;
}

/// Address of the byte at `position`.
AWAKEN_DEVICE u64 locate(const Shape& shape, u64 position) {
    u64 within = 0;
    u64 rest = divide(position, shape.width, within);
    u64 result = shape.base + within;
    for (unsigned i = 0; i < kShapeLoops && rest != 0; ++i) {
        u64 index = 0;
        rest = divide(rest, shape.counts[i], index);
        result += index * (u64)shape.strides[i];
    }
    return result;
}

/// Goes through the units of a Shape in steps. Adds digits instead of dividing.
template <typename Unit>
struct ShapeWalk {
    Shape shape;
    u64 units_per_block;
    u64 column, step_column;
    u64 index[kShapeLoops], step_index[kShapeLoops];

    AWAKEN_DEVICE void begin(u64 first_unit, u64 step) {
        units_per_block = shape.width / sizeof(Unit);
        u64 rest = divide(first_unit, units_per_block, column);
        u64 step_rest = divide(step, units_per_block, step_column);
        for (unsigned i = 0; i < kShapeLoops; ++i) {
            rest = divide(rest, shape.counts[i], index[i]);
            step_rest = divide(step_rest, shape.counts[i], step_index[i]);
        }
    }
    AWAKEN_DEVICE u64 here() const {
        u64 result = shape.base + column * sizeof(Unit);
        for (unsigned i = 0; i < kShapeLoops; ++i) {
            result += index[i] * (u64)shape.strides[i];
        }
        return result;
    }
    AWAKEN_DEVICE void next() {
        column += step_column;
        u64 carry = column >= units_per_block ? 1 : 0;
        column -= carry * units_per_block;
        for (unsigned i = 0; i < kShapeLoops; ++i) {
            index[i] += step_index[i] + carry;
            carry = index[i] >= shape.counts[i] ? 1 : 0;
            index[i] -= carry * shape.counts[i];
        }
    }
};

/// The same for consecutive bytes.
template <typename Unit>
struct LineWalk {
    u64 address, step;

    AWAKEN_DEVICE void begin(u64 first_unit, u64 units) {
        address += first_unit * sizeof(Unit);
        step = units * sizeof(Unit);
    }
    AWAKEN_DEVICE u64 here() const { return address; }
    AWAKEN_DEVICE void next() { address += step; }
};

/// Copies the units of `source` from source_first on to units [target_first, target_first + units) of `target`.
template <typename Unit, typename Target, typename Source>
AWAKEN_DEVICE void move_units(Target target, u64 target_first, Source source, u64 source_first, u64 units) {
    const u64 step = total_threads();
    u64 unit = global_thread();
    target.begin(target_first + unit, step);
    source.begin(source_first + unit, step);
    for (; unit < units; unit += kPackBatch * step) {
        Unit values[kPackBatch];
        for (unsigned i = 0; i < kPackBatch; ++i) {
            if (unit + i * step < units) {
                values[i] = *device_pointer<const Unit>(source.here());
            }
            source.next();
        }
        for (unsigned i = 0; i < kPackBatch; ++i) {
            if (unit + i * step < units) {
                *device_pointer<Unit>(target.here()) = values[i];
            }
            target.next();
        }
    }
}

template <typename Unit>
AWAKEN_DEVICE void pack_units(u64 target, const Shape& source, u64 start, u64 bytes) {
    move_units<Unit>(LineWalk<Unit>{target, 0}, 0, ShapeWalk<Unit>{source, 0, 0, 0, {}, {}}, start / sizeof(Unit),
                     bytes / sizeof(Unit));
}

template <typename Unit>
AWAKEN_DEVICE void unpack_units(const Shape& target, u64 start, u64 source, u64 bytes) {
    move_units<Unit>(ShapeWalk<Unit>{target, 0, 0, 0, {}, {}}, start / sizeof(Unit), LineWalk<Unit>{source, 0}, 0,
                     bytes / sizeof(Unit));
}

template <typename Unit>
AWAKEN_DEVICE void reshape_units(const Shape& target, u64 target_start, const Shape& source, u64 source_start,
                                 u64 bytes) {
    move_units<Unit>(ShapeWalk<Unit>{target, 0, 0, 0, {}, {}}, target_start / sizeof(Unit),
                     ShapeWalk<Unit>{source, 0, 0, 0, {}, {}}, source_start / sizeof(Unit), bytes / sizeof(Unit));
}

#if !defined(AWAKEN_PACK_PART) || AWAKEN_PACK_PART == 1

/// Packs positions [start, start + bytes) of `source` to consecutive bytes at `target`.
AWAKEN_KERNEL(awaken_pack_shape, u64 target, Shape source, u64 start, u64 bytes) {
    const u64 unit = common_unit(target | alignment_of(source) | start | bytes);
    if (unit == 16) {
        pack_units<Vector16>(target, source, start, bytes);
    } else if (unit == 8) {
        pack_units<u64>(target, source, start, bytes);
    } else if (unit == 4) {
        pack_units<u32>(target, source, start, bytes);
    } else if (unit == 2) {
        pack_units<u16>(target, source, start, bytes);
    } else {
        pack_units<u8>(target, source, start, bytes);
    }
}

/// The reverse. Bytes between the blocks stay as they are.
AWAKEN_KERNEL(awaken_unpack_shape, Shape target, u64 start, u64 source, u64 bytes) {
    const u64 unit = common_unit(source | alignment_of(target) | start | bytes);
    if (unit == 16) {
        unpack_units<Vector16>(target, start, source, bytes);
    } else if (unit == 8) {
        unpack_units<u64>(target, start, source, bytes);
    } else if (unit == 4) {
        unpack_units<u32>(target, start, source, bytes);
    } else if (unit == 2) {
        unpack_units<u16>(target, start, source, bytes);
    } else {
        unpack_units<u8>(target, start, source, bytes);
    }
}

#endif
#if !defined(AWAKEN_PACK_PART) || AWAKEN_PACK_PART == 2

/// Moves positions from one shape to another.
AWAKEN_KERNEL(awaken_reshape, Shape target, u64 target_start, Shape source, u64 source_start, u64 bytes) {
    const u64 unit = common_unit(alignment_of(target) | target_start | alignment_of(source) | source_start | bytes);
    if (unit == 16) {
        reshape_units<Vector16>(target, target_start, source, source_start, bytes);
    } else if (unit == 8) {
        reshape_units<u64>(target, target_start, source, source_start, bytes);
    } else if (unit == 4) {
        reshape_units<u32>(target, target_start, source, source_start, bytes);
    } else if (unit == 2) {
        reshape_units<u16>(target, target_start, source, source_start, bytes);
    } else {
        reshape_units<u8>(target, target_start, source, source_start, bytes);
    }
}

#endif
#if !defined(AWAKEN_PACK_PART) || AWAKEN_PACK_PART == 3

/// Moves bytes [from, to) of an entry, which lie at `position` of the other side. The threads of a group share the
/// bytes.
template <typename Unit, bool kGather>
AWAKEN_DEVICE void move_entry(u64 user, const PackEntry& entry, u64 from, u64 to, const Shape& other, u64 position,
                              u64 lane, u64 lanes) {
    for (u64 at = from + lane * sizeof(Unit); at < to; at += lanes * sizeof(Unit)) {
        u64 column = 0;
        const u64 row = divide(at, entry.width, column);
        const u64 in_user = user + (u64)entry.offset + row * (u64)entry.pitch + column;
        const u64 in_other = locate(other, position + (at - from));
        if (kGather) {
            *device_pointer<Unit>(in_other) = *device_pointer<const Unit>(in_user);
        } else {
            *device_pointer<Unit>(in_user) = *device_pointer<const Unit>(in_other);
        }
    }
}

/// Moves entries [first, last) of the list, counted over all elements, as far as they lie in positions [start, start +
/// bytes). In `other` these are the positions from other_start on. 2^team_bits threads share an entry.
template <bool kGather>
AWAKEN_DEVICE void move_list(const EntryList& list, u64 first, u64 last, u64 start, u64 bytes, const Shape& other,
                             u64 other_start, u32 team_bits) {
    const u64 lanes = (u64)1 << team_bits;
    const u64 lane = global_thread() & (lanes - 1);
    const u64 teams = total_threads() >> team_bits;
    for (u64 index = first + (global_thread() >> team_bits); index < last; index += teams) {
        u64 number = 0;
        const u64 element = divide(index, list.entries_per_element, number);
        const PackEntry entry = list.entries[number];
        const u64 user = list.base + element * (u64)list.extent;
        const u64 begin = element * list.size + entry.position;
        const u64 end = begin + (u64)entry.width * entry.rows;
        const u64 from = begin < start ? start - begin : 0;
        const u64 to = (end < start + bytes ? end : start + bytes) - begin;
        const u64 position = other_start + (begin + from - start);
        // Where rows follow each other, their width and pitch must be multiples of the unit, too.
        const u64 rows = entry.rows > 1 ? entry.width | (u64)entry.pitch : 0;
        const u64 unit = common_unit((user + (u64)entry.offset) | rows | from | to | alignment_of(other) | position);
        if (unit == 16) {
            move_entry<Vector16, kGather>(user, entry, from, to, other, position, lane, lanes);
        } else if (unit == 8) {
            move_entry<u64, kGather>(user, entry, from, to, other, position, lane, lanes);
        } else if (unit == 4) {
            move_entry<u32, kGather>(user, entry, from, to, other, position, lane, lanes);
        } else if (unit == 2) {
            move_entry<u16, kGather>(user, entry, from, to, other, position, lane, lanes);
        } else {
            move_entry<u8, kGather>(user, entry, from, to, other, position, lane, lanes);
        }
    }
}

AWAKEN_KERNEL(awaken_pack_list, Shape target, u64 target_start, EntryList source, u64 first, u64 last, u64 start,
              u64 bytes, u32 team_bits) {
    move_list<true>(source, first, last, start, bytes, target, target_start, team_bits);
}

AWAKEN_KERNEL(awaken_unpack_list, EntryList target, u64 first, u64 last, u64 start, Shape source, u64 source_start,
              u64 bytes, u32 team_bits) {
    move_list<false>(target, first, last, start, bytes, source, source_start, team_bits);
}

#endif

}  // namespace awaken::kernels
