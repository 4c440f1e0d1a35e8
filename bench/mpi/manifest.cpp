// SPDX-License-Identifier: Apache-2.0
#include "mpi/manifest.h"

#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device_facts.h"
#include "mpi/engine.h"
#include "mpi/mpi_functions.h"

extern char** environ;

namespace awaken::bench {
namespace {

/// Variables of MPIs, transports and GPU runtimes, which decide what is measured.
constexpr std::array kVariablePrefixes = {
    "AWAKEN", "MPICH_", "MPIR_", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_",   "NCCL_", "RCCL_",
    "CUDA_",  "HIP_",   "HSA_",  "ROCR_",     "I_MPI_",    "MV2_",      "MVP_", "PSM2_", "OMP_",  "LD_PRELOAD",
};

std::string first_line_with(const char* const path, const std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(key)) {
            const std::size_t value = line.find_first_not_of(": \t", key.size());
            return value == std::string::npos ? "" : line.substr(value);
        }
    }
    return "";
}

std::string contents_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::string date() {
    const std::time_t seconds = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&seconds, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

/// How the GPUs of this process reach each other; "1 to 0: peer access".
std::string peer_access(gpu::Runtime& gpu, const int device) {
    std::string text;
    for (int peer = 0; device >= 0 && peer < gpu.device_count(); ++peer) {
        bool can = false;
        if (peer != device && gpu.can_access_peer(device, peer, can).ok()) {
            text += (text.empty() ? "" : ", ") + std::string("to GPU ") + std::to_string(peer) +
                    (can ? ": peer access" : ": through the host");
        }
    }
    return text;
}

}  // namespace

Manifest make_manifest(const Environment& environment, const Placement& placement,
                       const std::vector<std::string>& words) {
    Manifest manifest;
    const std::vector<std::string> places =
        gather_texts(describe_placement(placement, environment.rank), environment.communicator);
    if (environment.rank != 0) {
        return manifest;
    }
    const auto add = [&](const std::string& key, const std::string& value) {
        if (!value.empty()) {
            manifest.entries.emplace_back(key, value);
        }
    };
    std::string command = "awaken bench";
    for (const std::string& word : words) {
        command += " " + word;
    }
    add("command", command);
    add("date", date());
    add("mpi", library_in_use().version);
    add("mpi_abi", library_in_use().abi);
    add("mpi_library", library_in_use().path);
    if (layer_is_loaded()) {
        using VersionText = const char* (*)();
        const auto version = reinterpret_cast<VersionText>(dlsym(RTLD_DEFAULT, "awaken_version"));
        add("awaken", version != nullptr ? version() : "");
    }
    if (placement.device >= 0) {
        const gpu::Versions versions = placement.gpu->versions();
        add("gpu_runtime", versions.runtime);
        add("gpu_driver", versions.driver != 0 ? std::to_string(versions.driver) : "");
        add("gpu_library", versions.library);
        gpu::DeviceInfo device;
        DeviceFacts facts;
        if (placement.gpu->device_info(placement.device, device).ok()) {
            facts = device_facts(placement.gpu->vendor(), device.pci_bus_id);
        }
        const std::string peers = peer_access(*placement.gpu, placement.device);
        add("gpu_link", peers + (peers.empty() || facts.links.empty() ? "" : ", ") + facts.links);
        add("gpu_clocks", facts.clocks);
    }
    for (std::size_t r = 0; r < places.size(); ++r) {
        add("rank_" + std::to_string(r), places[r]);
    }
    utsname system{};
    if (uname(&system) == 0) {
        add("system", std::string(system.sysname) + " " + system.release + " " + system.machine);
    }
    add("cpu", first_line_with("/proc/cpuinfo", "model name"));
    add("cpus_online", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
    add("cpu_governor", contents_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    add("cpu_frequency_khz", contents_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"));
    add("clock", "CLOCK_MONOTONIC");
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text = *variable;
        if (std::any_of(kVariablePrefixes.begin(), kVariablePrefixes.end(),
                        [&](const char* const prefix) { return text.starts_with(prefix); })) {
            variables.emplace_back(text);
        }
    }
    std::sort(variables.begin(), variables.end());
    for (const std::string& variable : variables) {
        const std::size_t equals = variable.find('=');
        manifest.entries.emplace_back("environment." + variable.substr(0, equals), variable.substr(equals + 1));
    }
    return manifest;
}

}  // namespace awaken::bench
