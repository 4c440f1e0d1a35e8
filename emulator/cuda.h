// SPDX-License-Identifier: Apache-2.0
// What CUDA's driver and CUDA's runtime have in common: their devices, and rules that differ from HIP's.
#pragma once

#include "figures.h"

namespace awaken::emulator {

constexpr int kCudaVersion = 13000;

/// By the numbers of CUdevice_attribute, which are cudaDeviceAttr's too. The layouts of cudaDeviceProp are those of
/// CUDA 12 and 13.
constexpr std::array kCudaFigures{
    Figure{1, {320, 320}, 4, Model::threads_per_block},
    Figure{2, {324, 324}, 4, Model::threads_per_block},  // x of a block
    Figure{3, {328, 328}, 4, Model::threads_per_block},
    Figure{4, {332, 332}, 4, 64},
    Figure{5, {336, 336}, 4, Model::grid_x},
    Figure{6, {340, 340}, 4, Model::grid_yz},
    Figure{7, {344, 344}, 4, Model::grid_yz},
    Figure{8, {296, 296}, 8, Model::shared_bytes_per_block},
    Figure{9, {352, 352}, 8, Model::constant_bytes},
    Figure{10, {308, 308}, 4, 32},          // warp
    Figure{11, {312, 312}, 8, 2147483647},  // pitch
    Figure{12, {304, 304}, 4, Model::registers},
    Figure{13, {0, 0}, 4, Model::clock_khz},
    Figure{14, {368, 368}, 8, Model::pitch_alignment},
    Figure{15, {0, 0}, 4, 1},  // overlap of copies and kernels
    Figure{16, {388, 384}, 4, Model::multiprocessors},
    Figure{19, {400, 392}, 4, 1},  // can map host memory
    Figure{31, {576, 560}, 4, 1},  // concurrent kernels
    Figure{36, {0, 0}, 4, Model::clock_khz},
    Figure{37, {612, 592}, 4, Model::bus_width},
    Figure{38, {616, 596}, 4, Model::l2_bytes},
    Figure{39, {624, 604}, 4, Model::threads_per_multiprocessor},
    Figure{40, {600, 584}, 4, 2},  // copy engines
    Figure{41, {604, 588}, 4, 1},  // unified addressing
    Figure{75, {360, 360}, 4, Model::compute_major},
    Figure{76, {364, 364}, 4, Model::compute_minor},
    Figure{78, {628, 608}, 4, 1},  // stream priorities
    Figure{81, {640, 624}, 8, Model::shared_bytes_per_multiprocessor},
    Figure{82, {648, 632}, 4, Model::registers},
    Figure{83, {652, 636}, 4, 1},  // managed memory
    Figure{89, {676, 656}, 4, 1},  // concurrent managed access
    Figure{91, {684, 664}, 4, 1},  // registered memory at the host's address
    Figure{95, {688, 668}, 4, 1},  // cooperative launches
    Figure{97, {696, 672}, 8, Model::shared_bytes_per_block},
    Figure{98, {0, 0}, 4, 1},      // waits for memory can flush writes of others
    Figure{99, {728, 704}, 4, 1},  // host memory can be registered
    Figure{102, {0, 0}, 4, 1},     // virtual memory
    Figure{103, {0, 0}, 4, 1},     // its handles as file descriptors
    Figure{106, {712, 688}, 4, Model::blocks_per_multiprocessor},
    Figure{115, {744, 720}, 4, 1},  // pools
    Figure{122, {0, 0}, 4, 1},      // 64-bit memory operations
    Figure{123, {0, 0}, 4, 1},      // their comparison NOR
};

/// The part of a front end that driver and runtime share.
struct Cuda {
    static bool usable(const Context& context) { return context.alive; }
    static Error ipc_error(Error error) { return error; }
    static Address address_for_kernels(const Allocation&, Address address) { return address; }
    static int attribute(const Device& device, int attribute) {
        constexpr int kPciBus = 33;
        constexpr int kPageableMemory = 88;
        constexpr int kFirstMemoryOperations = 92;  // and their 64-bit forms, and NOR: those of the first version
        constexpr int kLastMemoryOperations = 94;
        if (attribute == kPciBus) {
            return device.pci_bus;
        }
        if (attribute == kPageableMemory) {
            return core().configuration().pageable_memory ? 1 : 0;
        }
        if (attribute >= kFirstMemoryOperations && attribute <= kLastMemoryOperations) {
            return core().configuration().faults.first_memory_operations ? 1 : 0;
        }
        return attribute_of(kCudaFigures, attribute, attribute > 0 && attribute < 160 ? 0 : -1);
    }
    static constexpr bool clears_address = false;
    static constexpr bool needs_room_for_text = false;
    static constexpr int least_priority = 0;
    static constexpr int greatest_priority = -5;
};

}  // namespace awaken::emulator
