// SPDX-License-Identifier: Apache-2.0
// The GPU side of what the programs under apps/ have in common.
#pragma once

#include <hip/hip_runtime.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "program.h"

#ifndef __HIP_PLATFORM_AMD__
#include <gpu_runtime.h>
#endif

/// Ends the job with a message when a HIP call fails: one rank cannot go on without its GPU, and the others would wait
/// for it.
#define HIP_CHECK(call)                                                                                        \
    do {                                                                                                       \
        const hipError_t hip_check_error = (call);                                                             \
        if (hip_check_error != hipSuccess) {                                                                   \
            std::fprintf(stderr, "rank %d: %s:%d: %s: %s\n", apps::rank_of_world(), __FILE__, __LINE__, #call, \
                         hipGetErrorString(hip_check_error));                                                  \
            apps::end_job();                                                                                   \
        }                                                                                                      \
    } while (false)

namespace apps {

/// Whether the GPU runtime in use is AMD's, and so the libraries that go with it.
[[nodiscard]] inline bool runtime_is_amd() {
#ifdef __HIP_PLATFORM_AMD__
    return true;
#else
    return gpu_runtime_is_amd() != 0;
#endif
}

/// Makes device `rank % count` this rank's device and returns its number. Ends all ranks with exit_misuse where a rank
/// has no device. Collective.
inline int select_device(const std::string& program, int rank) {
    int count = 0;
    const hipError_t error = hipGetDeviceCount(&count);
    std::string problem;
    if (error != hipSuccess) {
        problem = hipGetErrorString(error);
    } else if (count == 0) {
        problem = "no GPU is visible to rank " + std::to_string(rank_of_world());
    }
    leave_if(program, problem);
    const int device = rank % count;
    HIP_CHECK(hipSetDevice(device));
    return device;
}

/// The same with the rank among those of the node, so that all its devices are in use in whatever order ranks were
/// spread over nodes.
inline int select_device(const std::string& program) {
    return select_device(program, place_on_node().rank);
}

/// Which device a rank has, among those of all hosts. Numbers do not tell: each rank may see others.
struct DevicePlace {
    std::array<char, 64> host = {};
    std::array<char, 32> pci_bus_id = {};  ///< empty where the runtime does not tell

    [[nodiscard]] bool is_same_as(const DevicePlace& other) const {
        return pci_bus_id[0] != '\0' && host == other.host && pci_bus_id == other.pci_bus_id;
    }
};

/// `device` -1 is none.
[[nodiscard]] inline DevicePlace place_of_device(int device) {
    DevicePlace place;
    gethostname(place.host.data(), place.host.size() - 1);
    if (device < 0) {
        return place;
    }
    std::array<char, 32> address = {};
    if (hipDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device) == hipSuccess) {
        std::snprintf(place.pci_bus_id.data(), place.pci_bus_id.size(), "%s", address.data());
    } else {
        // A runtime that does not tell is no reason to end.
        (void)hipGetLastError();
    }
    return place;
}

/// How many ranks have the same device as this one, itself included. Where that cannot be told, as many as there have
/// to be: the node's ranks over the visible devices. Collective.
[[nodiscard]] inline std::size_t ranks_of_device() {
    int device = 0;
    int devices = 1;
    HIP_CHECK(hipGetDevice(&device));
    HIP_CHECK(hipGetDeviceCount(&devices));
    const int ranks_of_node = place_on_node().ranks;
    const DevicePlace own = place_of_device(device);
    std::vector<DevicePlace> places(static_cast<std::size_t>(size_of_world()));
    // Unused characters are zeros, so equal places have equal bytes.
    MPI_Allgather(&own, sizeof own, MPI_BYTE, places.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD);
    std::size_t ranks = 0;
    for (const DevicePlace& place : places) {
        ranks += place.is_same_as(own) ? 1 : 0;
    }
    return ranks > 0 ? ranks : static_cast<std::size_t>((ranks_of_node + devices - 1) / devices);
}

}  // namespace apps
