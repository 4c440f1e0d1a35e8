// SPDX-License-Identifier: Apache-2.0
#include "mpi/placement.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {
namespace {

int launcher_local_rank() {
    // Only variables that count within a node: SLURM_PROCID and PMI_RANK count over all nodes.
    for (const char* const name :
         {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK",
          "PALS_LOCAL_RANKID", "SLURM_LOCALID", "FLUX_TASK_LOCAL_ID", "JSM_NAMESPACE_LOCAL_RANK"}) {
        const char* const value = std::getenv(name);
        char* end = nullptr;
        if (value != nullptr) {
            const long rank = std::strtol(value, &end, 10);
            if (end != value && *end == '\0' && rank >= 0) {
                return static_cast<int>(rank);
            }
        }
    }
    return -1;
}

std::string visible_devices_setting() {
    std::string text;
    for (const char* const name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
        if (const char* const value = std::getenv(name); value != nullptr) {
            text += std::string(text.empty() ? " (" : ", ") + name + "=" + value;
        }
    }
    return text.empty() ? "" : text + ")";
}

gpu::Runtime& find_runtime(const Options& options) {
    std::string why_cuda;
    std::string why_hip;
    const bool any = options.accelerator != Accelerator::cuda && options.accelerator != Accelerator::rocm;
    const bool hip_first = any && gpu::expected_vendor() == gpu::Vendor::hip;
    for (const bool hip : {hip_first, !hip_first}) {
        if (!any && hip != (options.accelerator == Accelerator::rocm)) {
            continue;
        }
        gpu::Runtime& runtime = gpu::find(hip ? gpu::Choice::hip : gpu::Choice::cuda, hip ? &why_hip : &why_cuda);
        if (runtime.vendor() == (hip ? gpu::Vendor::hip : gpu::Vendor::cuda)) {
            return runtime;
        }
    }
    std::string reasons = why_cuda;
    if (!why_hip.empty()) {
        reasons += (reasons.empty() ? "" : "; ") + why_hip;
    }
    throw Error(std::string("no ") +
                    (any                                        ? "GPU"
                     : options.accelerator == Accelerator::rocm ? "ROCm"
                                                                : "CUDA") +
                    " runtime is found" + (reasons.empty() ? "" : " (" + reasons + ")"),
                "install the GPU driver, use host buffers (H H, or no -d), or try --emulate cuda:2");
}

int choose_device(const Options& options, const int local_rank, const int count) {
    if (options.gpu_map.empty()) {
        return local_rank % count;
    }
    const auto place = static_cast<std::size_t>(local_rank) % options.gpu_map.size();
    const int device = options.gpu_map[place];
    if (device < 0 || device >= count) {
        throw Error("--gpu-map gives node-local rank " + std::to_string(local_rank) + " the GPU " +
                        std::to_string(device) + ", and " + std::to_string(count) + " are visible" +
                        visible_devices_setting(),
                    "use numbers from 0 to " + std::to_string(count - 1));
    }
    return device;
}

void use(gpu::Runtime& runtime, const int device) {
    const gpu::Status status = runtime.make_current(device);
    if (!status.ok()) {
        throw Error("GPU " + std::to_string(device) + " cannot be used: " + status.message(),
                    "see that the GPU is free and the driver works");
    }
}

/// Names a GPU across processes, whatever number it has in each.
std::string identity_of(const Placement& placement) {
    gpu::DeviceInfo info;
    if (placement.device < 0 || !placement.gpu->device_info(placement.device, info).ok()) {
        return "";
    }
    std::string uuid(reinterpret_cast<const char*>(info.uuid), sizeof info.uuid);
    return uuid.find_first_not_of('\0') == std::string::npos ? info.pci_bus_id : uuid + info.pci_bus_id;
}

/// Rank 0 of a node says which of its GPUs serve several ranks.
void report_sharing(const Placement& placement, const Options& options, MPI_Comm node) {
    constexpr std::size_t kLength = 64;
    std::array<char, kLength> mine{};
    const std::string identity = identity_of(placement);
    std::memcpy(mine.data(), identity.data(), std::min(identity.size(), kLength));
    int ranks = 0;
    int rank = 0;
    MPI_Comm_size(node, &ranks);
    MPI_Comm_rank(node, &rank);
    std::vector<char> all(kLength * static_cast<std::size_t>(ranks));
    std::vector<int> devices(static_cast<std::size_t>(ranks));
    check_mpi(MPI_Gather(mine.data(), kLength, MPI_CHAR, all.data(), kLength, MPI_CHAR, 0, node), "MPI_Gather");
    check_mpi(MPI_Gather(&placement.device, 1, MPI_INT, devices.data(), 1, MPI_INT, 0, node), "MPI_Gather");
    if (rank != 0 || options.quiet_notes) {
        return;
    }
    std::map<std::string, std::vector<int>> users;
    for (int r = 0; r < ranks; ++r) {
        if (devices[static_cast<std::size_t>(r)] >= 0) {
            users[std::string(&all[kLength * static_cast<std::size_t>(r)], kLength)].push_back(r);
        }
    }
    for (const auto& [gpu, sharing] : users) {
        if (sharing.size() > 1) {
            std::fprintf(stderr, "awaken: %zu ranks share GPU %d on %s: what is measured is not a link between GPUs\n",
                         sharing.size(), devices[static_cast<std::size_t>(sharing.front())], host_name().c_str());
        }
    }
}

}  // namespace

Placement place_before_init(const Options& options) {
    Placement placement;
    placement.local_rank = launcher_local_rank();
    if (!needs_gpu(options)) {
        return placement;
    }
    placement.gpu = &find_runtime(options);
    const int count = placement.gpu->device_count();
    if (count == 0) {
        throw Error(placement.gpu->versions().runtime + " shows no GPU" + visible_devices_setting(),
                    "make a GPU visible, use host buffers (H H, or no -d), or try --emulate cuda:2");
    }
    placement.device = choose_device(options, std::max(placement.local_rank, 0), count);
    use(*placement.gpu, placement.device);
    return placement;
}

void verify_placement(Placement& placement, const Options& options, MPI_Comm communicator) {
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    int local_rank = 0;
    MPI_Comm_rank(node, &local_rank);
    // Thrown only when the other ranks no longer wait for this one.
    std::optional<Error> problem;
    try {
        if (placement.device >= 0 && local_rank != placement.local_rank) {
            const int device = choose_device(options, local_rank, placement.gpu->device_count());
            if (device != placement.device) {
                placement.device = device;
                use(*placement.gpu, device);
            }
        }
    } catch (const Error& error) {
        problem = error;
    }
    placement.local_rank = local_rank;
    report_sharing(placement, options, node);
    check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
    if (problem) {
        throw Error(*problem);
    }
}

std::string host_name() {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    return host.data();
}

std::string describe_placement(const Placement& placement, const int rank) {
    std::string text = host_name() + ": rank " + std::to_string(rank);
    gpu::DeviceInfo info;
    if (placement.device >= 0 && placement.gpu->device_info(placement.device, info).ok()) {
        text += " on GPU " + std::to_string(placement.device) + " (" + info.name + ", " + info.pci_bus_id + ")";
    }
    return text;
}

}  // namespace awaken::bench
