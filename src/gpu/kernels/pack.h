// Gathering scattered user memory into a packed buffer and back, for datatypes with gaps.
//
// The packed side may be device memory or pinned host memory. Two forms of the user's side: rows at a constant pitch,
// and a list of blocks. Blocks and rows must not overlap, neither with each other nor with the packed side. Launch with
// any number of threads in x; all kernels are grid-stride loops.
#pragma once

#include "portable.h"

namespace awaken::kernels {

/// One run of bytes of an irregular layout.
struct PackBlock {
    i64 offset;         ///< from the user's address, bytes; may be negative
    u64 length;         ///< bytes
    u64 packed_offset;  ///< from the start of the packed buffer, bytes
};

/// The largest power of two, at most 16, that divides everything whose bits are in `bits`.
AWAKEN_DEVICE u64 common_unit(u64 bits) {
    bits |= 16;
    return bits & (~bits + 1);
}

template <typename Unit>
AWAKEN_DEVICE void copy_units(device_pointer<u8> target, device_pointer<const u8> source, u64 units, u64 first,
                              u64 step) {
    const device_pointer<Unit> to = pointer_cast<Unit>(target);
    const device_pointer<const Unit> from = pointer_cast<const Unit>(source);
    for (u64 i = first; i < units; i += step)
        to[i] = from[i];
}

/// Copies `length` bytes together with other threads: this one takes the units first, first + step, ...
AWAKEN_DEVICE void copy_run(device_pointer<u8> target, device_pointer<const u8> source, u64 length, u64 first,
                            u64 step) {
    // Wide units need both addresses aligned, which a few bytes at the start achieve when the addresses agree in their
    // low bits.
    const u64 unit = common_unit(address(target) ^ address(source));
    u64 head = (unit - (address(target) & (unit - 1))) & (unit - 1);
    if (head > length) head = length;
    copy_units<u8>(target, source, head, first, step);
    target = target + head;
    source = source + head;
    length -= head;
    const u64 units = length / unit;
    if (unit == 16) {
        copy_units<Vector16>(target, source, units, first, step);
    } else if (unit == 8) {
        copy_units<u64>(target, source, units, first, step);
    } else if (unit == 4) {
        copy_units<u32>(target, source, units, first, step);
    } else if (unit == 2) {
        copy_units<u16>(target, source, units, first, step);
    } else {
        copy_units<u8>(target, source, units, first, step);
    }
    const u64 done = units * unit;
    copy_units<u8>(target + done, source + done, length - done, first, step);
}

/// This thread's share of rows: a unit is copied from (row, column) of one side to that of the other. One division for
/// each thread, none for each unit.
template <typename Unit>
AWAKEN_DEVICE void copy_rows(device_pointer<u8> target, i64 target_pitch, device_pointer<const u8> source,
                             i64 source_pitch, u64 width, u64 rows) {
    const u64 units_per_row = width / sizeof(Unit);
    const u64 step = total_threads();
    const u64 rows_per_step = step / units_per_row;
    const u64 columns_per_step = step % units_per_row;
    u64 row = global_thread() / units_per_row;
    u64 column = global_thread() % units_per_row;
    while (row < rows) {
        const device_pointer<Unit> to = pointer_cast<Unit>(target + (i64)row * target_pitch);
        const device_pointer<const Unit> from = pointer_cast<const Unit>(source + (i64)row * source_pitch);
        to[column] = from[column];
        row += rows_per_step;
        column += columns_per_step;
        if (column >= units_per_row) {
            column -= units_per_row;
            ++row;
        }
    }
}

AWAKEN_DEVICE void copy_strided(device_pointer<u8> target, i64 target_pitch, device_pointer<const u8> source,
                                i64 source_pitch, u64 width, u64 rows) {
    if (width == 0) return;
    const u64 unit = common_unit(address(target) | address(source) | (u64)target_pitch | (u64)source_pitch | width);
    if (unit == 16) {
        copy_rows<Vector16>(target, target_pitch, source, source_pitch, width, rows);
    } else if (unit == 8) {
        copy_rows<u64>(target, target_pitch, source, source_pitch, width, rows);
    } else if (unit == 4) {
        copy_rows<u32>(target, target_pitch, source, source_pitch, width, rows);
    } else if (unit == 2) {
        copy_rows<u16>(target, target_pitch, source, source_pitch, width, rows);
    } else {
        copy_rows<u8>(target, target_pitch, source, source_pitch, width, rows);
    }
}

/// Rows of `width` bytes at `user`, `pitch` bytes apart (negative is allowed), become consecutive in `packed`.
AWAKEN_KERNEL(awaken_gather_strided, device_pointer<const u8> user, i64 pitch, u64 width, u64 rows,
              device_pointer<u8> packed) {
    copy_strided(packed, (i64)width, user, pitch, width, rows);
}

/// The reverse; bytes between the rows stay as they are.
AWAKEN_KERNEL(awaken_scatter_strided, device_pointer<u8> user, i64 pitch, u64 width, u64 rows,
              device_pointer<const u8> packed) {
    copy_strided(user, pitch, packed, (i64)width, width, rows);
}

/// Copies `count` blocks at `user` into `packed`. Blocks of threads in x share out the list, those in y one entry:
/// choose the grid's y for the length of the blocks.
AWAKEN_KERNEL(awaken_gather_blocks, device_pointer<const u8> user, device_pointer<const PackBlock> blocks, u64 count,
              device_pointer<u8> packed) {
    const u64 first = (u64)block_index().y * block_size().x + thread_index().x;
    const u64 step = (u64)grid_size().y * block_size().x;
    for (u64 i = block_index().x; i < count; i += grid_size().x) {
        const PackBlock block = blocks[i];
        copy_run(packed + block.packed_offset, user + block.offset, block.length, first, step);
    }
}

/// The reverse; bytes outside the blocks stay as they are.
AWAKEN_KERNEL(awaken_scatter_blocks, device_pointer<u8> user, device_pointer<const PackBlock> blocks, u64 count,
              device_pointer<const u8> packed) {
    const u64 first = (u64)block_index().y * block_size().x + thread_index().x;
    const u64 step = (u64)grid_size().y * block_size().x;
    for (u64 i = block_index().x; i < count; i += grid_size().x) {
        const PackBlock block = blocks[i];
        copy_run(user + block.offset, packed + block.packed_offset, block.length, first, step);
    }
}

}  // namespace awaken::kernels
