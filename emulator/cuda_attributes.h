// CUDA's device attributes: CUdevice_attribute and cudaDeviceAttr have the same numbers.
#pragma once

#include "core/core.h"

namespace awaken::emulator {

/// Device attributes by number; -1 for one that this model has not.
[[nodiscard]] inline int cuda_attribute_value(const Device& device, int attribute) noexcept {
    switch (attribute) {
        case 1:
        case 2:
        case 3:
            return Model::threads_per_block;
        case 4:
            return 64;
        case 5:
            return Model::grid_x;
        case 6:
        case 7:
            return Model::grid_yz;
        case 8:
        case 97:
            return Model::shared_bytes_per_block;
        case 9:
            return Model::constant_bytes;
        case 10:
            return 32;  // warp size
        case 11:
            return 2147483647;  // pitch
        case 12:
        case 82:
            return Model::registers;
        case 13:
        case 36:
            return Model::clock_khz;
        case 14:
            return Model::pitch_alignment;
        case 15:
            return 1;  // overlap of copies and kernels
        case 16:
            return Model::multiprocessors;
        case 18:
            return 0;  // integrated
        case 19:
        case 31:
        case 41:
        case 78:
        case 83:
        case 89:
        case 91:
        case 95:
        case 99:
        case 102:
        case 103:
        case 115:
            return 1;
        case 33:
            return device.pci_bus;
        case 34:
        case 50:
            return 0;  // PCI device, PCI domain
        case 37:
            return Model::bus_width;
        case 38:
            return Model::l2_bytes;
        case 39:
            return Model::threads_per_multiprocessor;
        case 40:
            return 2;  // copy engines
        case 75:
            return Model::compute_major;
        case 76:
            return Model::compute_minor;
        case 81:
            return Model::shared_bytes_per_multiprocessor;
        case 88:
            return core().configuration().faults.pageable_memory ? 1 : 0;
        case 106:
            return Model::blocks_per_multiprocessor;
        default:
            return attribute > 0 && attribute < 160 ? 0 : -1;
    }
}

}  // namespace awaken::emulator
