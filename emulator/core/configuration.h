// SPDX-License-Identifier: Apache-2.0
// What the environment asks the emulated driver to be. Read once, at the first call into any of its libraries.
// docs/emulator.md lists the variables. CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES are read as
// the real drivers read them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace awaken::emulator {

enum class Vendor : std::uint8_t { none, cuda, hip };

/// Injected faults, by their names in AWAKEN_TEST_FAULTS.
struct Faults {
    bool ipc_export = false;         ///< ipc-export: exporting an IPC handle fails
    bool ipc_open = false;           ///< ipc-open: opening one fails to map
    bool descriptor_import = false;  ///< descriptor-import: importing physical memory by its descriptor fails
    bool isolated = false;           ///< isolated: opening one fails as between private pid namespaces
    bool hidden_device = false;      ///< hidden-device: opening memory of a device that is not visible is refused
    bool no_peer = false;            ///< no-peer: no device can reach another
    bool pinned_memory = false;      ///< pinned-oom: allocating page-locked host memory fails
    bool registering = false;        ///< register: registering host memory fails
    /// registered-elsewhere: kernels find registered host memory at another address than the CPU (HIP)
    bool registered_elsewhere = false;
    bool shutdown = false;  ///< shutdown: once the process runs its exit handlers, each call says "deinitialized"
    bool ccl_shared_device = false;  ///< ccl-share-gpu: ranks of a CCL communicator may use the same device
    bool host_access = false;        ///< host-access: the host may touch device memory
    bool pageable_memory = false;    ///< pageable-memory: kernels may use memory from malloc
    /// memory-operations-v1: CUDA's first version of memory operations may be used
    bool first_memory_operations = false;
    int failing_ccl_rank = -1;  ///< ccl-init=R: rank R of each CCL communicator fails to initialise
    int silent_ccl_rank = -1;   ///< ccl-silent=R: the same, and the others wait for it for ever
    /// ccl-connect=R: rank R fails in its first operation of each CCL communicator, and the others block in theirs
    int unconnected_ccl_rank = -1;
    std::optional<std::size_t> memory_limit;  ///< oom (0) or oom-after=BYTES: device memory in use may not grow beyond
    std::uint64_t failing_kernel = 0;         ///< kernel-error=N: the same of the N-th kernel
    std::uint64_t failing_copy = 0;  ///< copy-error=N: the N-th copy of the process fails (launch failure); 0: none
};

/// How the emulated GPUs are connected, by AWAKEN_EMULATE_LINKS.
struct EmulatedLinks {
    enum class Kind : std::uint8_t { pcie, nvlink, nvswitch, xgmi };
    Kind kind = Kind::pcie;
    int count = 0;                         ///< of a pair; with NVSwitch, of a GPU
    std::vector<std::vector<int>> matrix;  ///< of each pair, by the machine's numbers; empty where all are alike
    int devices_of_socket = 0;             ///< of each of the machine's processors; 0: all hang at one

    /// Direct links of two devices; 0 where PCIe or a switch connects them.
    [[nodiscard]] int between(int one, int other) const {
        if (one == other || kind == Kind::pcie || kind == Kind::nvswitch) {
            return 0;
        }
        return matrix.empty() ? count : matrix.at(static_cast<std::size_t>(one)).at(static_cast<std::size_t>(other));
    }

    /// How many links follow each other on the shortest path of links between two devices; 0 where there is none.
    [[nodiscard]] int hops(int one, int other) const;
};

/// What becomes of a call that a driver lets wait for all work of a context or device, while there is such work.
enum class BusyCalls : std::uint8_t {
    wait,  ///< it waits
    error  ///< it fails: not ready
};

/// How long a driver takes to map an allocation of another process, by AWAKEN_TEST_IPC_OPEN_US.
struct IpcOpenTime {
    std::chrono::microseconds fixed{0};
    std::chrono::microseconds per_gib{0};

    [[nodiscard]] std::chrono::nanoseconds of(std::size_t bytes) const {
        constexpr double kGib = std::size_t{1} << 30;
        return fixed + std::chrono::duration_cast<std::chrono::nanoseconds>(static_cast<double>(bytes) / kGib *
                                                                            std::chrono::nanoseconds(per_gib));
    }
};

/// Operations of streams are late by up to `longest`, by AWAKEN_TEST_DELAYS.
struct DelayRange {
    std::uint32_t seed = 0;
    std::chrono::microseconds longest{0};
};

struct Configuration {
    Vendor vendor = Vendor::none;
    int hip_generation = 0;  ///< 5, 6 or 7: the major version of ROCm to be; 0: as the file name of the library says
    int devices = 0;         ///< of the machine, before the visibility variables
    std::vector<int> visible;
    std::size_t memory_bytes = std::size_t{4} << 30;
    std::chrono::microseconds delay{200};
    IpcOpenTime ipc_open_time;
    DelayRange random_delays;
    BusyCalls busy_calls = BusyCalls::wait;
    /// Connections of the streams to their device. With a single one, a stream that waits for a value in memory holds
    /// up all others of its context.
    int connections = 8;
    std::uint64_t queue_length = 1024;  ///< how many operations a stream has room for, the one under way included
    Faults faults;
    EmulatedLinks links;
    bool xnack = false;            ///< HSA_XNACK=1: AMD's name for kernels that may touch pageable memory
    bool pageable_memory = false;  ///< kernels may use memory from malloc, by HSA_XNACK or the word pageable-memory
    std::string problem;  ///< what is wrong in the environment, and what to write instead; empty when all is well
};

/// Parses the variables as they stand (for the tests; the driver uses Core's copy).
[[nodiscard]] Configuration read_configuration();

/// "64M" -> 67108864; nothing when it is no number of bytes.
[[nodiscard]] std::optional<std::size_t> parse_bytes(std::string_view text) noexcept;

}  // namespace awaken::emulator
