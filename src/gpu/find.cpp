// SPDX-License-Identifier: Apache-2.0
// Chooses the GPU runtime that this process uses.
//
// The fast path of find() is one atomic load once a runtime was found, and one look at the loader's counter before
// that. find() reads the names of the loaded objects only when the counter has moved. A library may be loaded but not
// yet initialised by the program: Python packages load the CUDA driver on import and initialise it at first use. Such a
// library stays a candidate, and each call asks it again. That is one driver call that returns at once. Until the
// library is initialised, no pointer can be a device's anyway.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.h"
#include "gpu/vendor.h"

namespace awaken::gpu {

const char* to_string(Vendor vendor) noexcept {
    switch (vendor) {
        case Vendor::none:
            return "none";
        case Vendor::cuda:
            return "cuda";
        case Vendor::hip:
            return "hip";
    }
    return "unknown";
}

Choice choice_of(const Vendor vendor) noexcept {
    switch (vendor) {
        case Vendor::cuda:
            return Choice::cuda;
        case Vendor::hip:
            return Choice::hip;
        case Vendor::none:
            break;
    }
    return Choice::none;
}

const char* to_string(MemoryKind kind) noexcept {
    switch (kind) {
        case MemoryKind::host:
            return "host";
        case MemoryKind::pinned:
            return "pinned";
        case MemoryKind::device:
            return "device";
        case MemoryKind::managed:
            return "managed";
    }
    return "unknown";
}

std::string Status::message() const {
    if (ok()) {
        return {};
    }
    std::string text = call != nullptr ? call : "GPU runtime";
    if (text.ends_with("_v2")) {
        text.resize(text.size() - 3);  // cuda.h gives the function its name without that
    }
    text += ": ";
    text += description != nullptr ? description : "unknown error";
    text += " (" + std::to_string(code) + ")";
    return text;
}

namespace {

/// When libraries of both vendors are loaded, they are asked in this order.
constexpr std::size_t kLibraries = kVendors.size();
const VendorLibrary& vendor_library(std::size_t index) noexcept {
    return index == 0 ? cuda_library() : hip_library();
}

/// The device nodes of the kernel drivers: NVIDIA's on desktops and servers, on Jetson, in WSL; AMD's compute node, in
/// WSL. The emulated driver needs none.
bool device_node_present(const std::size_t vendor) noexcept {
    if (const char* const emulate = std::getenv("AWAKEN_EMULATE"); emulate != nullptr && *emulate != '\0') {
        return true;
    }
    constexpr std::array<std::array<const char*, 4>, kLibraries> kNodes = {
        {{"/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg"}, {"/dev/kfd", "/dev/dxg"}}};
    return std::any_of(kNodes[vendor].begin(), kNodes[vendor].end(),
                       [](const char* const node) { return node != nullptr && ::access(node, F_OK) == 0; });
}

class Finder {
  public:
    /// A runtime that the program uses, of one vendor, or of any vendor (kLibraries).
    Runtime& in_use(const std::size_t wanted, std::string* why_not) {
        Search& search = _searches[wanted];
        if (Runtime* const runtime = search.found.load(std::memory_order_acquire)) {
            return *runtime;
        }
        if (why_not == nullptr && !search.waiting.load(std::memory_order_acquire) &&
            loaded_object_counter() == search.settled_at.load(std::memory_order_acquire)) {
            return none();
        }
        const std::scoped_lock lock(_mutex);
        if (Runtime* const runtime = search.found.load(std::memory_order_relaxed)) {
            return *runtime;
        }
        const unsigned long long counter = scan();
        bool waiting = false;
        std::string reasons;
        for (std::size_t vendor = 0; vendor < kLibraries; ++vendor) {
            if (wanted != kLibraries && wanted != vendor) {
                continue;
            }
            for (Candidate& candidate : _candidates) {
                if (candidate.vendor != vendor || (candidate.opened_here && program_loaded(vendor))) {
                    continue;
                }
                if (candidate.ready(false)) {
                    search.found.store(candidate.runtime, std::memory_order_release);
                    return *candidate.runtime;
                }
                waiting = waiting || candidate.readiness == RuntimeState::not_initialised;
                append(reasons, candidate.why_not);
            }
        }
        search.waiting.store(waiting, std::memory_order_release);
        // Stored last: a thread that sees this takes "none" for the answer without asking.
        search.settled_at.store(counter, std::memory_order_release);
        if (why_not != nullptr) {
            *why_not = reasons.empty() ? "the program has loaded no GPU runtime (libcuda or libamdhip64)" : reasons;
        }
        return none();
    }

    /// Whether there is a library of that vendor that may become ready, loaded before or by this call.
    bool load(const std::size_t vendor, std::string& why_not) {
        const std::scoped_lock lock(_mutex);
        scan();
        std::string reasons;
        const auto usable = [&](const Candidate& candidate) {
            if (candidate.runtime == nullptr) {
                append(reasons, candidate.why_not);
            }
            return candidate.runtime != nullptr;
        };
        for (const Candidate& candidate : _candidates) {
            if (candidate.vendor == vendor && usable(candidate)) {
                return true;
            }
        }
        const Candidate* const opened = reasons.empty() ? open_installed(vendor, reasons, usable) : nullptr;
        if (opened != nullptr && !device_node_present(vendor)) {
            append(reasons, opened->path + " is installed, but there is no device node of a GPU driver for it");
        }
        if (!reasons.empty()) {
            why_not = reasons;
        }
        return reasons.empty();
    }

    Runtime& chosen(std::size_t vendor, std::string* why_not) {
        if (Runtime* const runtime = _chosen[vendor].load(std::memory_order_acquire)) {
            return *runtime;
        }
        if (why_not == nullptr &&
            loaded_object_counter() == _chosen_failed_at[vendor].load(std::memory_order_acquire)) {
            return none();
        }
        const std::scoped_lock lock(_mutex);
        if (Runtime* const runtime = _chosen[vendor].load(std::memory_order_relaxed)) {
            return *runtime;
        }
        scan();
        std::string reasons;
        Candidate* found = nullptr;
        for (Candidate& candidate : _candidates) {
            if (candidate.vendor != vendor) {
                continue;
            }
            if (candidate.ready(true)) {
                found = &candidate;
                break;
            }
            append(reasons, candidate.why_not);
        }
        if (found == nullptr && reasons.empty()) {
            found = open_installed(vendor, reasons, [&](Candidate& candidate) {
                if (candidate.ready(true)) {
                    return true;
                }
                append(reasons, candidate.why_not);
                return false;
            });
        }
        if (found != nullptr) {
            _chosen[vendor].store(found->runtime, std::memory_order_release);
            return *found->runtime;
        }
        _chosen_failed_at[vendor].store(loaded_object_counter(), std::memory_order_release);
        if (why_not != nullptr) {
            *why_not = reasons;
        }
        return none();
    }

  private:
    /// A vendor's library that is loaded.
    struct Candidate {
        std::size_t vendor = 0;
        std::string path;
        VendorRuntime* runtime = nullptr;  ///< lives as long as the process; null when the library lacks functions
        RuntimeState readiness = RuntimeState::not_initialised;
        std::string why_not;
        bool opened_here = false;  ///< and not by the program, which may load another version later

        /// Whether the runtime can be used. Asks again until the answer is final.
        bool ready(bool initialise) {
            const bool settled = readiness == RuntimeState::ready || readiness == RuntimeState::no_device;
            if (!settled) {
                why_not.clear();
                readiness = runtime->prepare(initialise, &why_not);
            }
            return readiness == RuntimeState::ready;
        }
    };

    static void append(std::string& reasons, const std::string& reason) {
        if (!reason.empty()) {
            reasons += (reasons.empty() ? "" : "; ") + reason;
        }
    }

    [[nodiscard]] bool known(const std::string& path) const {
        return std::any_of(_candidates.begin(), _candidates.end(),
                           [&path](const Candidate& candidate) { return candidate.path == path; });
    }

    [[nodiscard]] bool program_loaded(const std::size_t vendor) const {
        return std::any_of(_candidates.begin(), _candidates.end(), [vendor](const Candidate& candidate) {
            return candidate.vendor == vendor && !candidate.opened_here;
        });
    }

    /// Opens the installed libraries of a vendor, up to the first that fits. Of several versions one may fit the
    /// devices when another does not.
    template <class Fits>
    Candidate* open_installed(const std::size_t vendor, std::string& reasons, const Fits fits) {
        const VendorLibrary& library = vendor_library(vendor);
        std::string absent;
        for (const std::string name : library.names) {
            std::string reason;
            const DynamicLibrary opened = DynamicLibrary::open({&name, 1}, reason);
            if (!opened) {
                append(absent, reason);
                continue;
            }
            if (known(opened.path())) {
                continue;  // two names of one file
            }
            Candidate& candidate = add(vendor, opened);
            candidate.opened_here = true;
            if (fits(candidate)) {
                return &candidate;
            }
        }
        if (reasons.empty()) {
            reasons = std::string("no ") + library.title + " can be loaded: " + absent;
        }
        return nullptr;
    }

    Candidate& add(std::size_t vendor, const DynamicLibrary& library) {
        Candidate candidate;
        candidate.vendor = vendor;
        candidate.path = library.path();
        candidate.runtime = vendor_library(vendor).make(library, candidate.why_not).release();
        if (candidate.runtime == nullptr) {
            candidate.readiness = RuntimeState::no_device;
        }
        return _candidates.emplace_back(std::move(candidate));
    }

    /// Looks for vendors' libraries among the loaded objects, if anything was loaded since the last time. Returns the
    /// loader's counter for which the candidates are complete.
    unsigned long long scan() {
        const unsigned long long counter = loaded_object_counter();
        if (counter == _scanned_at) {
            return counter;
        }
        // A newly loaded object may supply a missing part.
        for (Candidate& candidate : _candidates) {
            if (candidate.runtime != nullptr && candidate.readiness == RuntimeState::no_device) {
                candidate.readiness = RuntimeState::not_initialised;
            }
        }
        for (const std::string& path : loaded_object_paths()) {
            for (std::size_t vendor = 0; vendor < kLibraries; ++vendor) {
                if (!is_library_named(path, vendor_library(vendor).stem) || known(path)) {
                    continue;
                }
                if (const DynamicLibrary library = DynamicLibrary::open_loaded(path)) {
                    add(vendor, library);
                }
            }
        }
        _scanned_at = counter;
        return counter;
    }

    struct Search {
        std::atomic<Runtime*> found{nullptr};
        /// The loader's counter when the candidates were last asked in vain; 0: never.
        std::atomic<unsigned long long> settled_at{0};
        std::atomic<bool> waiting{false};  ///< a loaded runtime waits for the program to initialise it
    };
    std::array<Search, kLibraries + 1> _searches = {};
    std::array<std::atomic<Runtime*>, kLibraries> _chosen = {};
    std::array<std::atomic<unsigned long long>, kLibraries> _chosen_failed_at = {};
    std::mutex _mutex;
    unsigned long long _scanned_at = 0;  ///< the loader's counter at the last scan; 0: none yet
    std::deque<Candidate> _candidates;   ///< in load order
};

Finder& finder() {
    // Leaked: destructors of other libraries make MPI calls too.
    static Finder* const instance = new Finder;
    return *instance;
}

}  // namespace

Runtime& find(Choice choice, std::string* why_not) {
    switch (choice) {
        case Choice::automatic:
            return finder().in_use(kLibraries, why_not);
        case Choice::cuda:
            return finder().chosen(0, why_not);
        case Choice::hip:
            return finder().chosen(1, why_not);
        case Choice::none:
            break;
    }
    if (why_not != nullptr) {
        *why_not = "GPU support is switched off (AWAKEN_GPU=none)";
    }
    return none();
}

Runtime& find_in_use(const Choice choice, std::string* why_not) {
    switch (choice) {
        case Choice::cuda:
            return finder().in_use(0, why_not);
        case Choice::hip:
            return finder().in_use(1, why_not);
        default:
            return find(choice, why_not);
    }
}

bool can_be_loaded(const Choice choice, std::string& why_not) {
    return finder().load(choice == Choice::cuda ? 0 : 1, why_not);
}

bool driver_present() noexcept {
    for (std::size_t vendor = 0; vendor < kLibraries; ++vendor) {
        if (device_node_present(vendor)) {
            return true;
        }
    }
    try {
        for (const std::string& path : loaded_object_paths()) {
            for (std::size_t i = 0; i < kLibraries; ++i) {
                if (is_library_named(path, vendor_library(i).stem)) {
                    return true;
                }
            }
        }
    } catch (...) {
        return true;  // out of memory: the safe answer is the one that keeps the layer active
    }
    return false;
}

}  // namespace awaken::gpu
