// SPDX-License-Identifier: Apache-2.0
// What a rank can tell of itself: its host and processors, its GPU, its MPI, and the libraries beside it.
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/doctor_notes.h"
#include "ccl/ccl.h"
#include "gpu/precompiled_kernels.h"
#include "gpu/vendor.h"
#include "mpi/mpi_functions.h"
#include "probe/commands.h"
#include "probe/record.h"

namespace awaken::probe {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// NUMA node of a PCI device by sysfs; -1 when the system does not say.
int numa_node_of(const std::string& pci_bus_id) {
    const std::string text = first_line(fs::path("/sys/bus/pci/devices") / pci_bus_id / "numa_node");
    return text.empty() ? -1 : std::atoi(text.c_str());
}

/// The NUMA nodes of the processors that this process may run on.
std::vector<int> own_numa_nodes(const std::vector<int>& cpus) {
    std::vector<int> nodes;
    for (int node = 0;; ++node) {
        const fs::path folder = "/sys/devices/system/node/node" + std::to_string(node);
        std::error_code ignored;
        if (!fs::exists(folder, ignored)) {
            return nodes;
        }
        for (const int cpu : cpus) {
            if (fs::exists(folder / ("cpu" + std::to_string(cpu)), ignored)) {
                nodes.push_back(node);
                break;
            }
        }
    }
}

std::vector<int> own_cpus() {
    std::vector<int> cpus;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return cpus;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
            cpus.push_back(cpu);
        }
    }
    return cpus;
}

/// What an MPI answers to one of the questions after GPU support that MPIs have as extensions: true, false, or null
/// where it has no such function.
Json ask_extension(const char* const name) {
    const auto function = reinterpret_cast<int (*)()>(dlsym(bench::library_in_use().handle, name));
    return function != nullptr ? Json(function() != 0) : Json();
}

/// MPICH's question, which takes the kind of GPU: MPIX_GPU_SUPPORT_CUDA, _ZE, _HIP.
Json ask_mpich(const int kind) {
    const auto function =
        reinterpret_cast<int (*)(int, int*)>(dlsym(bench::library_in_use().handle, "MPIX_GPU_query_support"));
    int supported = 0;
    if (function == nullptr || function(kind, &supported) != MPI_SUCCESS) {
        return {};
    }
    return supported != 0;
}

Json mpi_facts() {
    constexpr int kMpichCuda = 0;
    constexpr int kMpichHip = 2;
    std::vector<char> text(MPI_MAX_LIBRARY_VERSION_STRING + 1);
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    int version = 0;
    int subversion = 0;
    MPI_Get_version(&version, &subversion);
    const bench::MpiLibrary& library = bench::library_in_use();
    return {{"name", bench::short_version()},
            {"library", library.path},
            {"library_version", std::string(text.data())},
            {"standard", std::to_string(version) + "." + std::to_string(subversion)},
            {"abi", library.abi},
            {"build_id", build_id_of(dlsym(library.handle, "PMPI_Send"))},
            {"says_gpu_aware",
             {{"MPIX_Query_cuda_support", ask_extension("MPIX_Query_cuda_support")},
              {"MPIX_Query_rocm_support", ask_extension("MPIX_Query_rocm_support")},
              {"MPIX_Query_hip_support", ask_extension("MPIX_Query_hip_support")},
              {"MPIX_GPU_query_support(CUDA)", ask_mpich(kMpichCuda)},
              {"MPIX_GPU_query_support(HIP)", ask_mpich(kMpichHip)}}}};
}

Json gpu_facts(const Job& job) {
    if (!job.no_gpu.empty()) {
        return {{"why_not", job.no_gpu}};
    }
    gpu::Runtime& runtime = *job.placement.gpu;
    gpu::DeviceInfo info;
    Json facts = {{"vendor", gpu::to_string(runtime.vendor())},
                  {"runtime", runtime.versions().runtime},
                  {"runtime_library", runtime.versions().library},
                  {"visible_devices", runtime.device_count()},
                  {"device", job.placement.device}};
    if (const gpu::Status status = runtime.device_info(job.placement.device, info); !status.ok()) {
        facts["why_not"] = status.message();
        return facts;
    }
    std::string uuid;
    for (const unsigned char byte : info.uuid) {
        std::array<char, 3> digits{};
        std::snprintf(digits.data(), digits.size(), "%02x", byte);
        uuid += digits.data();
    }
    facts["name"] = info.name;
    facts["pci_address"] = info.pci_bus_id;
    facts["uuid"] = uuid;
    facts["memory_bytes"] = info.memory_bytes;
    facts["numa_node"] = numa_node_of(info.pci_bus_id);
    return facts;
}

Json rank_facts(const Job& job) {
    const std::vector<int> cpus = own_cpus();
    return {{"record", "rank"},
            {"rank", job.rank},
            {"local_rank", job.placement.local_rank},
            {"host", bench::host_name()},
            {"process", getpid()},
            {"cpus", cpus},
            {"cpus_online", sysconf(_SC_NPROCESSORS_ONLN)},
            {"numa_nodes", own_numa_nodes(cpus)},
            {"awaken", bench::layer_is_loaded()},
            {"gpu", gpu_facts(job)}};
}

/// GDRCopy: the library, the device node of its driver, and whether the two open.
Json gdrcopy() {
    Json facts = {{"device_node", fs::exists("/dev/gdrdrv")}, {"library", ""}, {"opens", false}};
    for (const char* const name : {"libgdrapi.so.2", "libgdrapi.so"}) {
        void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            continue;
        }
        facts["library"] = name;
        const auto open = reinterpret_cast<void* (*)()>(dlsym(library, "gdr_open"));
        const auto close = reinterpret_cast<int (*)(void*)>(dlsym(library, "gdr_close"));
        if (void* const handle = open != nullptr ? open() : nullptr; handle != nullptr) {
            facts["opens"] = true;
            if (close != nullptr) {
                close(handle);
            }
        }
        break;
    }
    return facts;
}

Json collective_library(const Job& job) {
    if (!job.no_gpu.empty()) {
        return {{"title", ""}, {"why_not", job.no_gpu}};
    }
    std::string why_not;
    const ccl::Library* const library = ccl::find(job.placement.gpu->vendor(), &why_not);
    if (library == nullptr) {
        return {{"title", ""}, {"why_not", why_not}};
    }
    return {{"title", library->title()}, {"library", library->path()}};
}

/// For which GPUs Awaken was built with compiled kernels, and which of these this GPU loads; where it loads none, what
/// compiles them when they are first used.
Json kernels(const Job& job) {
    const gpu::PrecompiledKernels& known = gpu::precompiled_kernels();
    std::vector<std::string> targets;
    for (const std::string_view target : known.targets()) {
        targets.emplace_back(target);
    }
    Json facts = {{"targets", targets}};
    gpu::DeviceInfo info;
    if (!job.no_gpu.empty() || !job.placement.gpu->device_info(job.placement.device, info).ok()) {
        return facts;
    }
    facts["architecture"] = info.architecture;
    facts["loads"] = std::string(known.target_for(info.architecture));
    if (known.target_for(info.architecture).empty()) {
        const bool cuda = job.placement.gpu->vendor() == gpu::Vendor::cuda;
        std::string why_not;
        const auto compiler = (cuda ? gpu::cuda_library() : gpu::hip_library()).make_compiler(why_not);
        facts["compiler"] = compiler != nullptr ? compiler->identity() : "";
        facts["why_no_compiler"] = compiler != nullptr ? "" : why_not;
    }
    return facts;
}

}  // namespace

void tell_facts(const Job& job) {
    for (const std::string& text : bench::gather_texts(rank_facts(job).text(), job.communicator)) {
        write_record_text(text);
    }
    if (job.rank != 0) {
        return;
    }
    write_record({{"record", "mpi"}, {"ranks", job.ranks}, {"mpi", mpi_facts()}});
    write_record(
        {{"record", "libraries"}, {"gdrcopy", gdrcopy()}, {"ccl", collective_library(job)}, {"kernels", kernels(job)}});
    write_record({{"record", "done"}});
}

}  // namespace awaken::probe
