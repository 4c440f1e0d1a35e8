// SPDX-License-Identifier: Apache-2.0
#include "call/memory_kinds.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "call/call.h"
#include "call/layer.h"
#include "gpu/memory_kinds.h"

namespace awaken::AWAKEN_ABI {

std::optional<std::string> info_value(const MPI_Info info, const char* const key) {
    const Native& native = layer().real;
    int length = 0, found = 0;
    if (info == MPI_INFO_NULL || native.Info_get_valuelen(info, key, &length, &found) != MPI_SUCCESS || found == 0) {
        return std::nullopt;
    }
    std::string value(static_cast<std::size_t>(length) + 1, '\0');
    native.Info_get(info, key, length, value.data(), &found);
    return value.c_str();
}

bool serves(const gpu::Vendor vendor) {
    if (layer().settings.gpu == gpu::Choice::none) {
        return false;
    }
    const gpu::Runtime& used = layer().gpu();
    // Programs ask right after MPI_Init, before their first GPU call loads the runtime.
    return (used.is_present() ? used.vendor() : gpu::expected_vendor()) == vendor;
}

InfoForMpi::InfoForMpi(const MPI_Info given) : _info(given) {
    const std::optional<std::string> asserted = info_value(given, kAssertedKinds);
    if (!asserted || gpu::are_host_kinds(*asserted)) {
        return;
    }
    const Native& native = layer().real;
    if (native.Info_dup(given, &_own) == MPI_SUCCESS) {
        native.Info_delete(_own, kAssertedKinds);
        _info = _own;
    }
}

InfoForMpi::~InfoForMpi() {
    if (_own != MPI_INFO_NULL) {
        layer().real.Info_free(&_own);
    }
}

namespace {

/// Whether the MPI knows what the key means. An older one may give back what a session was given.
bool knows_kinds() {
    int version = 0, subversion = 0;
    layer().real.Get_version(&version, &subversion);
    return version > 4 || (version == 4 && subversion >= 1);
}

std::vector<gpu::Vendor> served_vendors() {
    std::vector<gpu::Vendor> vendors;
    for (const gpu::Vendor vendor : gpu::kVendors) {
        if (serves(vendor)) {
            vendors.push_back(vendor);
        }
    }
    return vendors;
}

}  // namespace

void MemoryKinds::world_started() {
    std::optional<std::string> requested = info_value(MPI_INFO_ENV, kProvidedKinds);
    if (!requested) {
        // Open MPI 5's mpirun passes the option on as a parameter that its library does not know yet.
        if (const char* const parameter = getenv("OMPI_MCA_mpi_memory_alloc_kinds")) {
            requested = parameter;
        }
    }
    if (requested) {
        const std::scoped_lock lock(_mutex);
        _requested_of_launcher = std::make_shared<const std::string>(std::move(*requested));
    }
}

void MemoryKinds::mpi_stopped() {
    const std::scoped_lock lock(_mutex);
    _known.clear();
    _any_asserted.store(false, std::memory_order_relaxed);
    changed();
}

void MemoryKinds::request(const NamedObject& session, const std::string& kinds) {
    const std::scoped_lock lock(_mutex);
    _known[session].requested = std::make_shared<const std::string>(kinds);
}

void MemoryKinds::inherit(const NamedObject& origin, const NamedObject& made) {
    const std::scoped_lock lock(_mutex);
    if (std::shared_ptr<const std::string> requested = known_of(origin).requested) {
        _known[made].requested = std::move(requested);
    }
}

const MemoryKinds::Known& MemoryKinds::known_of(const NamedObject& object) const {
    static const Known nothing;
    const auto known = _known.find(object);
    return known != _known.end() ? known->second : nothing;
}

std::string MemoryKinds::provided_to(const Known& known, const std::vector<gpu::Vendor>& vendors) const {
    const std::shared_ptr<const std::string>& requested =
        known.requested != nullptr ? known.requested : _requested_of_launcher;
    return gpu::provided_kinds(vendors, requested != nullptr ? std::optional(*requested) : std::nullopt);
}

void MemoryKinds::take_hints(const NamedObject& object, const MPI_Info info, const bool together) {
    if (object.type == NamedObject::Type::communicator) {
        take_reproducible(object, info, together);
    }
    std::optional<std::string> asserted = info_value(info, kAssertedKinds);
    if (!asserted) {
        return;
    }
    const std::vector<gpu::Vendor> vendors = served_vendors();
    const std::scoped_lock lock(_mutex);
    Known known = known_of(object);
    if (!gpu::are_provided(*asserted, provided_to(known, vendors))) {
        return;
    }
    known.host_only = gpu::are_host_kinds(*asserted);
    known.names_mpi = false;
    for (const gpu::NamedKind& named : gpu::parse_kinds(*asserted)) {
        known.names_mpi = known.names_mpi || named.kind == "mpi";
    }
    known.asserted = std::move(asserted);
    _known[object] = std::move(known);
    changed();
    _any_asserted.store(true, std::memory_order_relaxed);
}

void MemoryKinds::take_reproducible(const NamedObject& object, const MPI_Info info, const bool together) {
    const std::optional<std::string> value = info_value(info, kReproducible);
    const auto comm = object.as<MPI_Comm>();
    const bool before = is_reproducible(comm);
    const int wanted = !value ? (before ? 1 : 0) : *value == "true" ? 1 : *value == "false" ? 0 : 2;
    std::array<int, 2> mine{wanted, -wanted}, least = mine;  // the smallest and, as a negative number, the largest
    if (together && _layer.node_peers.membership_of(comm) != NodePeers::Membership::unknown) {
        if (const int error = _layer.real.Allreduce(mine.data(), least.data(), 2, MPI_INT, MPI_MIN, comm);
            error != MPI_SUCCESS) {
            throw RaisedError(error);
        }
    }
    if (least[1] == -2) {
        throw ClassedError(
            MPI_ERR_INFO_VALUE,
            std::string(kReproducible) + " is \"" + value.value_or("something else on another rank") + "\"",
            "give it the value true or false");
    }
    if (least[0] != -least[1]) {
        throw ClassedError(MPI_ERR_INFO_VALUE,
                           std::string(kReproducible) + " is true on some ranks of the communicator and not on others",
                           "pass the same info on all ranks");
    }
    if (value) {
        set_reproducible(object, wanted == 1);
    }
}

void MemoryKinds::set_reproducible(const NamedObject& object, const bool wanted) {
    bool is_first = false;
    {
        const std::scoped_lock lock(_mutex);
        _known[object].reproducible = wanted;
        is_first = wanted && !_any_reproducible.exchange(true, std::memory_order_relaxed);
    }
    if (is_first && _on_reproducible != nullptr) {
        _on_reproducible();
    }
}

void MemoryKinds::duplicate(const MPI_Comm origin, const MPI_Comm made) {
    if (is_reproducible(origin)) {
        set_reproducible(NamedObject::of(NamedObject::Type::communicator, made), true);
    }
}

bool MemoryKinds::knows_reproducible(const MPI_Comm comm) {
    const std::scoped_lock lock(_mutex);
    return known_of(NamedObject::of(NamedObject::Type::communicator, comm)).reproducible;
}

void MemoryKinds::forget(const NamedObject& object) {
    const std::scoped_lock lock(_mutex);
    if (_known.erase(object) != 0) {
        changed();
    }
}

void MemoryKinds::answer(const NamedObject& object, const MPI_Info info) {
    const std::vector<gpu::Vendor> vendors = served_vendors();
    Known known;
    std::string provided;
    {
        const std::scoped_lock lock(_mutex);
        known = known_of(object);
        provided = provided_to(known, vendors);
    }
    const Native& native = _layer.real;
    if (knows_kinds()) {
        provided = gpu::joined_kinds(provided, info_value(info, kProvidedKinds).value_or(""));
    }
    native.Info_set(info, kProvidedKinds, provided.c_str());
    if (known.asserted && !known.asserted->empty()) {
        native.Info_set(info, kAssertedKinds, known.asserted->c_str());
    }
    if (known.reproducible) {
        native.Info_set(info, kReproducible, "true");
    }
}

bool MemoryKinds::is_host_only(const NamedObject& object) {
    // Most calls use the object of the previous call.
    struct Last {
        NamedObject object;
        std::uint64_t generation = 0;
        bool host_only = false;
    };
    static thread_local Last last{};
    const std::uint64_t generation = _generation.load(std::memory_order_acquire);
    if (last.generation != generation || last.object != object) {
        const std::scoped_lock lock(_mutex);
        const Known& known = known_of(object);
        last = {object, generation,
                known.host_only && !(known.names_mpi && _gave_device_memory.load(std::memory_order_relaxed))};
    }
    return last.host_only;
}

gpu::Runtime& MemoryKinds::runtime_to_allocate_from(const std::string& kinds) {
    gpu::Runtime& used = _layer.gpu();
    if (used.is_present() || _layer.settings.gpu == gpu::Choice::none) {
        return used;
    }
    const gpu::Vendor expected = gpu::expected_vendor();
    if (gpu::kind_to_allocate(kinds, expected) == gpu::MemoryKind::host) {
        return used;
    }
    static_cast<void>(gpu::find(gpu::choice_of(expected)));
    return _layer.gpu();
}

void* MemoryKinds::allocate(gpu::Runtime& runtime, const gpu::MemoryKind kind, const std::size_t bytes) {
    const int device = runtime.device_to_use();
    void* memory = nullptr;
    const gpu::Status status = kind == gpu::MemoryKind::pinned    ? runtime.allocate_pinned(bytes, memory)
                               : kind == gpu::MemoryKind::managed ? runtime.allocate_managed(device, bytes, memory)
                                                                  : runtime.allocate(device, bytes, memory);
    if (!status.ok()) {
        return nullptr;
    }
    if (kind != gpu::MemoryKind::pinned) {
        gave_device_memory();
    }
    const std::scoped_lock lock(_mutex);
    _allocations[memory] = {&runtime, kind, device};
    _allocated.fetch_add(1, std::memory_order_relaxed);
    return memory;
}

bool MemoryKinds::free(void* const memory) {
    if (_allocated.load(std::memory_order_relaxed) == 0) {
        return false;
    }
    Allocation gone{};
    {
        const std::scoped_lock lock(_mutex);
        const auto found = _allocations.find(memory);
        if (found == _allocations.end()) {
            return false;
        }
        gone = found->second;
        _allocations.erase(found);
        _allocated.fetch_sub(1, std::memory_order_relaxed);
    }
    // The driver's own calls would wait, too, but keep other threads from the device meanwhile.
    static_cast<void>(gone.runtime->is_soon_idle(gone.kind == gpu::MemoryKind::pinned ? -1 : gone.device));
    if (gone.kind == gpu::MemoryKind::pinned) {
        gone.runtime->free_pinned_when_idle(memory);
    } else {
        gone.runtime->free_when_idle(memory, gone.device);
    }
    return true;
}

void MemoryKinds::gave_device_memory() noexcept {
    if (!_gave_device_memory.exchange(true, std::memory_order_relaxed)) {
        changed();
    }
}

}  // namespace awaken::AWAKEN_ABI
