// SPDX-License-Identifier: Apache-2.0
#include "affinity.h"

#include <sched.h>

#include <array>
#include <cstdio>
#include <map>
#include <vector>

#include "device.h"

namespace ghost_exchange {

namespace {

/// What one rank says of itself.
struct Place {
    apps::DevicePlace gpu;
    std::array<char, 96> cores = {};  ///< those that it may use, "0-3,8"
    std::array<char, 64> gpu_name = {};
    int core = -1;  ///< where it is running now
    int numa_node = -1;
    int device = -1;
};

/// "0-3,8"; cut off with "..." where it is too long.
std::string allowed_cores(std::size_t room) {
    cpu_set_t set;
    CPU_ZERO(&set);
    // Fails on machines with more cores than the set has room for.
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return "?";
    }
    std::string text;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (!CPU_ISSET(core, &set)) {
            continue;
        }
        int last = core;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) {
            ++last;
        }
        const std::string part =
            last == core ? std::to_string(core) : std::to_string(core) + "-" + std::to_string(last);
        if (text.size() + part.size() + 5 > room) {
            return text + ",...";
        }
        text += (text.empty() ? "" : ",") + part;
        core = last;
    }
    return text;
}

Place own_place(int device) {
    Place place;
    place.gpu = apps::place_of_device(device);
    std::snprintf(place.cores.data(), place.cores.size(), "%s", allowed_cores(place.cores.size()).c_str());
    unsigned core = 0;
    unsigned node = 0;
    if (getcpu(&core, &node) == 0) {
        place.core = static_cast<int>(core);
        place.numa_node = static_cast<int>(node);
    }
    place.device = device;
    // A runtime that does not tell is no reason to end.
    if (device >= 0 &&
        hipDeviceGetName(place.gpu_name.data(), static_cast<int>(place.gpu_name.size()), device) != hipSuccess) {
        (void)hipGetLastError();
    }
    return place;
}

}  // namespace

void print_affinity(int device) {
    const Place own = own_place(device);
    std::vector<Place> places(static_cast<std::size_t>(apps::rank_of_world() == 0 ? apps::size_of_world() : 0));
    MPI_Gather(&own, sizeof own, MPI_BYTE, places.data(), sizeof own, MPI_BYTE, 0, MPI_COMM_WORLD);

    std::map<std::string, std::vector<std::size_t>> ranks_of_gpu;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
        const Place& place = places[rank];
        std::string gpu = "no GPU";
        if (place.device >= 0) {
            const std::string address = place.gpu.pci_bus_id.data();
            gpu = "GPU " + std::to_string(place.device) + " (" + (address.empty() ? "address unknown" : address) +
                  ", " + place.gpu_name.data() + ")";
            if (!address.empty()) {
                ranks_of_gpu[std::string(place.gpu.host.data()) + " " + address].push_back(rank);
            }
        }
        std::printf("# rank %zu: host %s, core %d of %s, NUMA node %d, %s\n", rank, place.gpu.host.data(), place.core,
                    place.cores.data(), place.numa_node, gpu.c_str());
    }
    for (const auto& [gpu, ranks] : ranks_of_gpu) {
        if (ranks.size() < 2) {
            continue;
        }
        std::string list;
        for (const std::size_t rank : ranks) {
            list += (list.empty() ? "" : ", ") + std::to_string(rank);
        }
        std::printf("# warning: ranks %s share the GPU %s: give each its own (bind_gpu.sh), or start fewer on a host\n",
                    list.c_str(), gpu.c_str());
    }
    std::fflush(stdout);
}

}  // namespace ghost_exchange
