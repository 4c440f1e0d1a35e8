// SPDX-License-Identifier: Apache-2.0
// Which kinds of memory the program may pass, and which it asserts that it passes (MPI-4.1, 11.4.3).
//
// MPI has no place for this where it is older than MPI-4.1, and a newer one knows nothing of this layer. So the layer
// keeps requests and assertions by handle. An entry lives until its object is freed, a call that passes through here.
// A request is inherited: by all that comes from a session. An assertion is not.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/gpu.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class Layer;

inline constexpr const char* kProvidedKinds = "mpi_memory_alloc_kinds";
inline constexpr const char* kAssertedKinds = "mpi_assert_memory_alloc_kinds";
/// Of a communicator: its reductions fold in the order of the ranks.
inline constexpr const char* kReproducible = "awaken_reproducible";

/// The value of a key; none where the info lacks it.
[[nodiscard]] std::optional<std::string> info_value(MPI_Info info, const char* key);

/// True when the program may pass device pointers of this vendor to MPI calls.
[[nodiscard]] bool serves(gpu::Vendor vendor);

/// The info that the MPI gets in place of the program's. The MPI is given host memory where the program passes device
/// memory, so it may believe an assertion only if that names host memory.
class InfoForMpi {
  public:
    explicit InfoForMpi(MPI_Info given);
    ~InfoForMpi();
    InfoForMpi(const InfoForMpi&) = delete;
    InfoForMpi& operator=(const InfoForMpi&) = delete;
    [[nodiscard]] MPI_Info get() const noexcept { return _info; }

  private:
    MPI_Info _info;
    MPI_Info _own = MPI_INFO_NULL;
};

/// An object of the program's, by its handle. Handles of different types may have the same value.
struct NamedObject {
    enum class Type : std::uint8_t { none, session, group, communicator, window, file };
    Type type = Type::none;
    std::uint64_t handle = 0;
    auto operator<=>(const NamedObject&) const = default;

    template <class Handle>
    [[nodiscard]] static NamedObject of(const Type type, const Handle handle) noexcept {
        static_assert(sizeof handle <= sizeof(std::uint64_t));
        NamedObject object{type, 0};
        std::memcpy(&object.handle, &handle, sizeof handle);
        return object;
    }
    template <class Handle>
    [[nodiscard]] Handle as() const noexcept {
        Handle taken;
        std::memcpy(static_cast<void*>(&taken), &handle, sizeof taken);
        return taken;
    }
};

class MemoryKinds {
  public:
    explicit MemoryKinds(Layer& layer) : _layer(layer) {}
    MemoryKinds(const MemoryKinds&) = delete;
    MemoryKinds& operator=(const MemoryKinds&) = delete;

    /// MPI_Init has returned: what the launcher was asked for can be read now.
    void world_started();
    /// Called after the last MPI_Finalize or MPI_Session_finalize.
    void mpi_stopped();

    /// A session that asks for these kinds.
    void request(const NamedObject& session, const std::string& kinds);
    /// `made` comes from `origin`, whose request it has too.
    void inherit(const NamedObject& origin, const NamedObject& made);
    /// The program gives these hints to the object. Ignores an assertion of kinds that are not provided. `together`:
    /// all members of a communicator are in this call. Throws ClassedError.
    void take_hints(const NamedObject& object, MPI_Info info, bool together);
    /// `made` is a duplicate of a communicator.
    void duplicate(MPI_Comm origin, MPI_Comm made);
    /// Called before the object is freed: its handle may be another object's right after that.
    void forget(const NamedObject& object);
    /// Puts into `info` what the program is told about the object.
    void answer(const NamedObject& object, MPI_Info info);

    /// Whether the program wants the communicator's reductions folded in the order of the ranks.
    [[nodiscard]] bool is_reproducible(const MPI_Comm comm) {
        return _any_reproducible.load(std::memory_order_relaxed) && knows_reproducible(comm);
    }
    /// Called when the program first wants that of any communicator.
    void set_on_reproducible(void (*const serve)()) noexcept { _on_reproducible = serve; }

    /// Whether the program asserts anything about any object. A load, for calls that are made often.
    [[nodiscard]] bool any_asserted() const noexcept { return _any_asserted.load(std::memory_order_relaxed); }
    /// Whether all buffers that this process passes on the communicator, window or file are host memory, as the program
    /// asserts.
    [[nodiscard]] bool is_host_only(const NamedObject& object);

    /// The GPU runtime for memory of these kinds. A program may ask for its first GPU memory here: then this
    /// initialises the runtime that the machine has.
    [[nodiscard]] gpu::Runtime& runtime_to_allocate_from(const std::string& kinds);
    /// MPI_Alloc_mem for a kind that is not `host`. Null: there is none left.
    [[nodiscard]] void* allocate(gpu::Runtime& runtime, gpu::MemoryKind kind, std::size_t bytes);
    /// MPI_Free_mem. False: the memory is not from allocate().
    [[nodiscard]] bool free(void* memory);
    /// MPI functions have given device memory to the program, which `mpi` in a list stands for, too.
    void gave_device_memory() noexcept;

  private:
    struct Known {
        std::shared_ptr<const std::string> requested;
        std::optional<std::string> asserted;
        bool host_only = false;
        bool names_mpi = false;  ///< the assertion allows memory that MPI functions have given
        bool reproducible = false;
    };
    struct Allocation {
        gpu::Runtime* runtime;
        gpu::MemoryKind kind;
        int device;
    };

    /// These are called with the lock held. Empty for an object of which nothing is kept.
    [[nodiscard]] const Known& known_of(const NamedObject& object) const;
    /// `vendors`: from before, since looking for a GPU takes other locks.
    [[nodiscard]] std::string provided_to(const Known& known, const std::vector<gpu::Vendor>& vendors) const;
    [[nodiscard]] bool knows_reproducible(MPI_Comm comm);
    void take_reproducible(const NamedObject& object, MPI_Info info, bool together);
    void set_reproducible(const NamedObject& object, bool wanted);
    void changed() noexcept { _generation.fetch_add(1, std::memory_order_acq_rel); }

    Layer& _layer;
    std::atomic<bool> _any_asserted{false}, _any_reproducible{false};
    void (*_on_reproducible)() = nullptr;
    std::atomic<std::uint64_t> _generation{1};  ///< changes with every assertion and whenever one ends
    std::atomic<bool> _gave_device_memory{false};
    std::atomic<std::size_t> _allocated{0};
    std::mutex _mutex;
    std::shared_ptr<const std::string> _requested_of_launcher;
    std::map<NamedObject, Known> _known;
    std::unordered_map<void*, Allocation> _allocations;
};

}  // namespace awaken::AWAKEN_ABI
