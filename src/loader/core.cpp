// SPDX-License-Identifier: Apache-2.0
#include "loader/core.h"

#include <string>

#include "base/error.h"

// The functions of each core (entry/install.h). src/CMakeLists.txt defines AWAKEN_HAVE_<ABI> for the cores of this
// build.
#define AWAKEN_DECLARE_CORE(abi)                  \
    namespace awaken::abi {                       \
    void install(const loader::Binding& binding); \
    int unsupported_operation_code() noexcept;    \
    gpu::Runtime& gpu_in_use();                   \
    }
AWAKEN_DECLARE_CORE(mpich)
AWAKEN_DECLARE_CORE(openmpi)
AWAKEN_DECLARE_CORE(mpi5)
#undef AWAKEN_DECLARE_CORE

namespace awaken::core {

namespace {

struct Core {
    loader::Abi abi;
    void (*install)(const loader::Binding&);
    int (*unsupported_operation_code)() noexcept;
    gpu::Runtime& (*gpu_in_use)();
};

constexpr Core kCores[] = {
#ifdef AWAKEN_HAVE_MPICH
    {loader::Abi::mpich, mpich::install, mpich::unsupported_operation_code, mpich::gpu_in_use},
#endif
#ifdef AWAKEN_HAVE_OPENMPI
    {loader::Abi::openmpi, openmpi::install, openmpi::unsupported_operation_code, openmpi::gpu_in_use},
#endif
#ifdef AWAKEN_HAVE_MPI5
    {loader::Abi::mpi5, mpi5::install, mpi5::unsupported_operation_code, mpi5::gpu_in_use},
#endif
};

std::atomic<const Core*> installed{nullptr};

const Core* find(const loader::Abi abi) noexcept {
    for (const Core& core : kCores) {
        if (core.abi == abi) {
            return &core;
        }
    }
    return nullptr;
}

}  // namespace

const std::vector<loader::Abi>& available() noexcept {
    static const std::vector<loader::Abi> abis = [] {
        std::vector<loader::Abi> list;
        for (const Core& core : kCores) {
            list.push_back(core.abi);
        }
        return list;
    }();
    return abis;
}

namespace {

/// Lets other unwinders unwind the frames of this library. The program's exceptions and pthread_cancel() bring their
/// own unwinder (libgcc_s). That one runs the clean-up of our frames with the unwinder linked into this library, which
/// has its tables only after it has thrown something itself.
void prepare_unwinder() {
    try {
        throw Error("nothing is wrong", "nothing is to be done");
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
    }
}

}  // namespace

void install(const loader::Binding& binding) {
    prepare_unwinder();
    const Core* const core = find(binding.abi);
    if (core == nullptr) {
        throw Error(std::string("this build of Awaken has no core for the ") + loader::to_string(binding.abi) +
                        " ABI, which " + binding.path + " has",
                    "preload the library of an installation that was built with it");
    }
    core->install(binding);
    installed.store(core, std::memory_order_release);
}

int unsupported_operation(const loader::Abi abi) noexcept {
    const Core* const core = find(abi);
    return core != nullptr ? core->unsupported_operation_code() : 1;
}

gpu::Runtime& gpu_in_use() noexcept {
    const Core* const core = installed.load(std::memory_order_acquire);
    return core != nullptr ? core->gpu_in_use() : gpu::none();
}

bool is_installed() noexcept {
    return installed.load(std::memory_order_acquire) != nullptr;
}

}  // namespace awaken::core
