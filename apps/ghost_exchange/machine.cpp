// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "array.h"
#include "device.h"

extern const char* const ghost_exchange_kernels;  // kernels.hip

namespace ghost_exchange {

namespace {

/// Vendors' figures for GPUs by a part of their names; the first that fits counts.
struct Facts {
    const char* name;
    double memory_gb_s;  ///< 0: what the attributes say is right
    /// Where no library tells which links there are: NVLink through switches, or what directly connects two GPUs.
    double link_gb_s;
};
constexpr std::array<Facts, 9> known_gpus = {{
    {"MI300A", 5300, 128},  // the memory clock that the runtime tells is a quarter of the data rate here, not a half
    {"MI300X", 5300, 64},
    {"MI325X", 6000, 64},
    {"MI250", 1600, 0},  // 1, 2 or 4 links of 50 GB/s, depending on the pair; each half is a GPU
    {"MI210", 1600, 0},
    {"B200", 0, 900},
    {"H200", 0, 450},
    {"H100", 0, 450},
    {"A100", 0, 300},
}};

const Facts* facts_of(const std::string& gpu_name) {
    for (const Facts& facts : known_gpus) {
        if (gpu_name.find(facts.name) != std::string::npos) {
            return &facts;
        }
    }
    return nullptr;
}

}  // namespace

Machine::Machine(const std::string& program, const Options& options) {
    if (options.memory == Memory::host) {
        return;
    }
    _device = apps::select_device(program);
    apps::leave_if(program, problem_of(options.memory, options.exchange, _device));
    _kernels = std::make_unique<apps::Kernels>("ghost_exchange", ghost_exchange_kernels);
    if (options.exchange != Exchange::ccl) {
        return;
    }
    _ccl = std::make_unique<apps::Ccl>();
    apps::leave_if(program, _ccl->problem().empty() ? "" : "--exchange ccl: " + _ccl->name() + ": " + _ccl->problem());
}

std::string Machine::gpu_name() const {
    std::array<char, 256> name = {};
    if (_device < 0 || hipDeviceGetName(name.data(), static_cast<int>(name.size()), _device) != hipSuccess) {
        return {};
    }
    return name.data();
}

Limit Machine::memory_limit() const {
    if (_device < 0) {
        return {};
    }
    const std::string name = gpu_name();
    const Facts* const facts = facts_of(name);
    if (facts != nullptr && facts->memory_gb_s > 0) {
        return {facts->memory_gb_s, "figure for " + name};
    }
    int clock_khz = 0;
    int width_bits = 0;
    if (hipDeviceGetAttribute(&clock_khz, hipDeviceAttributeMemoryClockRate, _device) != hipSuccess ||
        hipDeviceGetAttribute(&width_bits, hipDeviceAttributeMemoryBusWidth, _device) != hipSuccess) {
        (void)hipGetLastError();
        return {};
    }
    if (clock_khz <= 0 || width_bits <= 0) {
        return {};
    }
    // Two transfers in each clock.
    return {2.0 * clock_khz * 1e3 * width_bits / 8 / 1e9, "memory clock x bus width"};
}

Limit Machine::link_limit_to(const apps::DevicePlace& own, const apps::DevicePlace& peer) const {
    if (own.host != peer.host) {
        return {};
    }
    const std::string name = gpu_name();
    const std::optional<Limit> told = limit_of_links(name, own.pci_bus_id.data(), peer.pci_bus_id.data());
    if (told) {
        return *told;
    }
    const Facts* const facts = facts_of(name);
    if (facts == nullptr || facts->link_gb_s == 0) {
        return {};
    }
    return {facts->link_gb_s, "link of " + name};
}

Limit Machine::link_limit(const Block& block) const {
    const apps::DevicePlace own = apps::place_of_device(_device);
    std::vector<apps::DevicePlace> places(static_cast<std::size_t>(apps::size_of_world()));
    MPI_Allgather(&own, sizeof own, MPI_BYTE, places.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD);
    Limit slowest = {std::numeric_limits<double>::infinity(), {}};
    for (const int neighbour : {block.left, block.right, block.bottom, block.top}) {
        if (_device < 0 || neighbour == MPI_PROC_NULL) {
            continue;
        }
        const apps::DevicePlace& peer = places[static_cast<std::size_t>(neighbour)];
        if (peer.is_same_as(own)) {
            continue;
        }
        const Limit limit = link_limit_to(own, peer);
        if (limit.gb_s < slowest.gb_s) {
            slowest = limit;
        }
    }

    struct {
        double gb_s;
        int rank;
    } least = {slowest.gb_s, apps::rank_of_world()};
    MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
    if (!std::isfinite(least.gb_s)) {
        return {};
    }
    std::array<char, 128> source = {};
    std::snprintf(source.data(), source.size(), "%s", slowest.source.c_str());
    MPI_Bcast(source.data(), static_cast<int>(source.size()), MPI_CHAR, least.rank, MPI_COMM_WORLD);
    return {least.gb_s, source.data()};
}

}  // namespace ghost_exchange
