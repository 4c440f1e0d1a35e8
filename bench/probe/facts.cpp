// What a rank can tell of itself: its host and processors, its GPU, its MPI, and the libraries beside it.
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ccl/ccl.h"
#include "mpi/mpi_functions.h"
#include "probe/commands.h"
#include "probe/record.h"

namespace awaken::probe {
namespace fs = std::filesystem;
namespace {

std::string host_name() {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    return host.data();
}

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

/// The note that the linker puts into a library (GNU build id), in hexadecimal digits; empty when it has none.
std::string build_id_of(const void* const symbol) {
    struct Search {
        std::uintptr_t address;
        std::string id;
    } search{reinterpret_cast<std::uintptr_t>(symbol), ""};
    dl_iterate_phdr(
        [](dl_phdr_info* const info, std::size_t, void* const data) {
            auto& wanted = *static_cast<Search*>(data);
            bool holds = false;
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const ElfW(Phdr) & segment = info->dlpi_phdr[i];
                const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
                holds = holds || (segment.p_type == PT_LOAD && wanted.address >= begin &&
                                  wanted.address < begin + segment.p_memsz);
            }
            if (!holds) {
                return 0;
            }
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const ElfW(Phdr) & segment = info->dlpi_phdr[i];
                if (segment.p_type != PT_NOTE) {
                    continue;
                }
                const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr);
                const unsigned char* const end = at + segment.p_memsz;
                while (at + sizeof(ElfW(Nhdr)) <= end) {
                    ElfW(Nhdr) note;
                    std::memcpy(&note, at, sizeof note);
                    const unsigned char* const name = at + sizeof note;
                    const unsigned char* const content = name + ((note.n_namesz + 3U) & ~3U);
                    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
                        for (unsigned byte = 0; byte < note.n_descsz; ++byte) {
                            std::array<char, 3> digits{};
                            std::snprintf(digits.data(), digits.size(), "%02x", content[byte]);
                            wanted.id += digits.data();
                        }
                        return 1;
                    }
                    at = content + ((note.n_descsz + 3U) & ~3U);
                }
            }
            return 1;
        },
        &search);
    return search.id;
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
            {"host", host_name()},
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

/// Texts of all ranks at rank 0, in the order of the ranks.
std::vector<std::string> gather(const std::string& text, const Job& job) {
    const int length = static_cast<int>(text.size());
    std::vector<int> lengths(static_cast<std::size_t>(job.ranks));
    bench::check_mpi(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, job.communicator), "MPI_Gather");
    std::vector<int> positions(lengths.size(), 0);
    for (std::size_t r = 1; r < lengths.size(); ++r) {
        positions[r] = positions[r - 1] + lengths[r - 1];
    }
    std::string all(static_cast<std::size_t>(positions.back() + lengths.back()), ' ');
    bench::check_mpi(MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), positions.data(), MPI_CHAR,
                                 0, job.communicator),
                     "MPI_Gatherv");
    std::vector<std::string> texts;
    for (std::size_t r = 0; job.rank == 0 && r < lengths.size(); ++r) {
        texts.push_back(all.substr(static_cast<std::size_t>(positions[r]), static_cast<std::size_t>(lengths[r])));
    }
    return texts;
}

}  // namespace

void tell_facts(const Job& job) {
    for (const std::string& text : gather(rank_facts(job).text(), job)) {
        write_record_text(text);
    }
    if (job.rank != 0) {
        return;
    }
    write_record({{"record", "mpi"}, {"ranks", job.ranks}, {"mpi", mpi_facts()}});
    write_record({{"record", "libraries"}, {"gdrcopy", gdrcopy()}, {"ccl", collective_library(job)}});
    write_record({{"record", "done"}});
}

}  // namespace awaken::probe
