// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library for the emulated machine: the calls by which programs ask after links.
#include <cstdio>
#include <cstring>

#include "front_end.h"
#include "machine.h"

namespace {

using namespace awaken::emulator;

enum Result : int { success = 0, uninitialized = 1, invalid_argument = 2, not_supported = 3, not_found = 6 };

/// nvmlPciInfo_t.
struct PciInfo {
    char short_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

bool has_gpus() {
    return configuration().vendor == Vendor::cuda && configuration().problem.empty();
}

/// Handles are device numbers, from 1.
void* handle_of(const int device) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
}
int device_of(void* const handle) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(handle)) - 1;
}
bool is_device(void* const handle) {
    return device_of(handle) >= 0 && device_of(handle) < configuration().devices;
}

/// Links of a device: to the switch, or to all other devices. Those of the first for a handle that is none.
int links_of(void* const handle) {
    const EmulatedLinks& links = configuration().links;
    const int device = is_device(handle) ? device_of(handle) : 0;
    int count = links.kind == EmulatedLinks::Kind::nvswitch ? links.count : 0;
    for (int peer = 0; peer < configuration().devices; ++peer) {
        count += links.between(device, peer);
    }
    return count;
}
bool is_link(void* const handle, const unsigned link) {
    return is_device(handle) && link < static_cast<unsigned>(links_of(handle));
}

}  // namespace

AWAKEN_EXPORT int nvmlInit_v2() {
    return has_gpus() ? success : not_found;
}
AWAKEN_EXPORT int nvmlShutdown() {
    return success;
}
AWAKEN_EXPORT const char* nvmlErrorString(int result) {
    switch (result) {
        case success:
            return "Success";
        case not_supported:
            return "Not Supported";
        case not_found:
            return "Not Found";
        default:
            return "Invalid Argument";
    }
}
AWAKEN_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** handle) {
    const int device = device_at(address);
    if (handle == nullptr || device < 0) {
        return device < 0 ? not_found : invalid_argument;
    }
    *handle = handle_of(device);
    return success;
}
/// Each device hangs at a host bridge of its own: of one NUMA node (NVML_TOPOLOGY_NODE), or of two processors
/// (NVML_TOPOLOGY_SYSTEM).
AWAKEN_EXPORT int nvmlDeviceGetTopologyCommonAncestor(void* one, void* other, int* level) {
    if (!is_device(one) || !is_device(other) || level == nullptr) {
        return invalid_argument;
    }
    const int of_socket = configuration().links.devices_of_socket;
    const bool same_socket = of_socket == 0 || device_of(one) / of_socket == device_of(other) / of_socket;
    *level = one == other ? 0 : same_socket ? 40 : 50;
    return success;
}
AWAKEN_EXPORT int nvmlDeviceGetNvLinkState(void* handle, unsigned link, int* active) {
    if (!is_link(handle, link) || active == nullptr) {
        return links_of(handle) == 0 ? not_supported : invalid_argument;
    }
    *active = 1;
    return success;
}
AWAKEN_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void* handle, unsigned link, int* type) {
    if (!is_link(handle, link) || type == nullptr) {
        return invalid_argument;
    }
    *type = configuration().links.kind == EmulatedLinks::Kind::nvswitch ? 2 : 0;
    return success;
}
AWAKEN_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* handle, unsigned link, PciInfo* info) {
    if (!is_link(handle, link) || info == nullptr) {
        return invalid_argument;
    }
    std::memset(info, 0, sizeof *info);
    if (configuration().links.kind == EmulatedLinks::Kind::nvswitch) {
        info->bus = 0x05;
    } else {
        // The first links go to device 0, the next to device 1, and so on; none to the device itself.
        int peer = 0;
        for (int before = 0;; ++peer) {
            before += configuration().links.between(device_of(handle), peer);
            if (static_cast<int>(link) < before) {
                break;
            }
        }
        info->bus = bus_of(static_cast<unsigned>(peer));
    }
    std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    std::snprintf(info->short_bus_id, sizeof info->short_bus_id, "0000:%02X:00.0", info->bus);
    return success;
}
