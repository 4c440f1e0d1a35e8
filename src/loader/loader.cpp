// SPDX-License-Identifier: Apache-2.0
#include "loader/loader.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "loader/core.h"
#include "loader/deepbind.h"
#include "loader/objects.h"

extern "C" {
extern void* awaken_slots[];
void awaken_resolve(const void* caller) noexcept;
}

namespace awaken::loader {

namespace {

const char* base_name(const std::string& path) noexcept {
    const auto slash = path.rfind('/');
    return path.c_str() + (slash == std::string::npos ? 0 : slash + 1);
}

/// A handle to an object that is already loaded, with one more reference; null for objects without a path.
void* handle_of(const LoadedObject& object) noexcept {
    if (object.path.empty()) {
        return nullptr;  // the program itself: its handle searches the global scope, where this library comes first
    }
    return dlopen(object.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
}

/// True when the object itself defines the symbol, and not one of its dependencies.
bool defines(void* handle, const LoadedObject& object, const char* symbol) noexcept {
    const void* address = dlsym(handle, symbol);
    return address != nullptr && object.contains(address);
}

std::string known_abis() {
    std::string text;
    for (const Abi abi : core::available()) {
        text += (text.empty() ? "" : ", ") + std::string(to_string(abi));
    }
    return text;
}

Abi recognise(void* handle, const LoadedObject& object, const std::string& version) {
    const std::optional<Abi> abi = recognise_abi(handle, object.path, version);
    if (!abi) {
        throw Error(
            "the MPI library " + object.path + " (" + version + ") has no ABI that Awaken knows (" + known_abis() + ")",
            "use an MPI with one of these ABIs (Open MPI from 3 on), build Awaken with -DAWAKEN_MPI=<its "
            "prefix>, or set AWAKEN=off");
    }
    return *abi;
}

/// True when the object of `caller` lists `soname` as needed.
bool needs(const void* caller, const char* soname) noexcept {
    Dl_info info{};
    link_map* map = nullptr;
    if (dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 || map == nullptr) {
        return false;
    }
    const char* strings = nullptr;
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_STRTAB) {
            strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        }
    }
    if (strings == nullptr) {
        return false;
    }
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_NEEDED && strcmp(strings + entry->d_un.d_val, soname) == 0) {
            return true;
        }
    }
    return false;
}

struct Candidate {
    LoadedObject object;
    void* handle;
};

std::vector<Candidate> find_candidates() {
    std::vector<Candidate> candidates;
    for (LoadedObject& object : loaded_objects()) {
        if (object.contains(reinterpret_cast<const void*>(&awaken_resolve))) {
            continue;  // this library
        }
        void* const handle = handle_of(object);
        if (handle == nullptr) {
            continue;
        }
        // A tool defines MPI_Send but leaves PMPI_Send to the MPI.
        if (defines(handle, object, "MPI_Init") && defines(handle, object, "PMPI_Send")) {
            candidates.push_back({std::move(object), handle});  // the reference is kept: the MPI must stay loaded
        } else {
            dlclose(handle);
        }
    }
    return candidates;
}

/// Prefix of the program by the path that started it: /opt/env/bin/python gives /opt/env, even if python is a link to
/// another place.
std::string program_prefix() {
    const auto* const started_as = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    const std::string path = started_as != nullptr ? started_as : "";
    const auto file = path.rfind('/');
    const auto folder = file == std::string::npos || file == 0 ? std::string::npos : path.rfind('/', file - 1);
    return folder == std::string::npos ? "" : path.substr(0, folder);
}

/// Opens the library that the program would open next, when the program calls MPI functions before it has opened an
/// MPI. Programs do so if they take our file for their libmpi. mpi4py does so because it finds our symbols in the
/// global scope and asks them which MPI this is. The launcher's variables tell which MPI started the job. A virtual
/// environment's own MPI comes before the system's.
void open_likely_library() {
    if (const char* const path = getenv("AWAKEN_MPI"); path != nullptr && *path != '\0') {
        if (dlopen(path, RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
            throw Error("AWAKEN_MPI=" + std::string(path) + " cannot be opened: " + dlerror(),
                        "give the path of a shared MPI library");
        }
        return;
    }
    const bool by_openmpi = getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
    const std::array<const char*, 3> mpich_first{"libmpi.so.12", "libmpich.so.12", "libmpi.so.40"};
    const std::array<const char*, 3> openmpi_first{"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"};
    for (const char* const name : by_openmpi ? openmpi_first : mpich_first) {
        for (const char* const variable : {"", "VIRTUAL_ENV", "CONDA_PREFIX"}) {
            const char* const value = *variable != '\0' ? getenv(variable) : nullptr;
            const std::string prefix = *variable == '\0' ? program_prefix() : value != nullptr ? value : "";
            if (!prefix.empty() && dlopen((prefix + "/lib/" + name).c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr) {
                return;
            }
        }
        if (dlopen(name, RTLD_LAZY | RTLD_GLOBAL) != nullptr) {
            return;
        }
    }
    throw Error("an MPI function was called, but no MPI library is loaded in this process, and none was found",
                "link the program to a shared MPI library, or name one with AWAKEN_MPI=/path/to/libmpi.so");
}

/// Ranks whose MPI differs from the launcher's do not find each other, and each runs alone. Warns once for the job.
void warn_of_another_launcher(const Binding& binding) {
    const char* const of_openmpi = getenv("OMPI_COMM_WORLD_RANK");
    // A variable of Hydra, MPICH's launcher. The PMI variables alone may be Slurm's, which starts any MPI.
    const char* const of_mpich = getenv("MPI_LOCALNRANKS") != nullptr ? getenv("PMI_RANK") : nullptr;
    const bool is_openmpi = binding.abi == Abi::openmpi;
    const char* const rank = is_openmpi ? of_mpich : of_openmpi;
    if ((is_openmpi ? of_openmpi : of_mpich) != nullptr || rank == nullptr || strcmp(rank, "0") != 0) {
        return;
    }
    fprintf(
        stderr,
        "awaken: the program names no MPI library, and the one that was found, %s (%s), is not that of the launcher "
        "(%s), so its ranks will not find each other: set AWAKEN_MPI to the launcher's libmpi\n",
        binding.path.c_str(), binding.version.c_str(), is_openmpi ? "MPICH" : "Open MPI");
}

/// The value of AWAKEN_MPI if it names another library than the one in use. The program loaded its library before the
/// loader could use the setting.
std::string passed_over(const void* const in_use) {
    const char* const asked = getenv("AWAKEN_MPI");
    if (asked == nullptr || *asked == '\0') {
        return {};
    }
    void* const named = dlopen(asked, RTLD_LAZY | RTLD_NOLOAD);  // null if it is not loaded or does not exist
    const bool is_another = named != in_use;
    if (named != nullptr) {
        dlclose(named);
    }
    return is_another ? asked : std::string();
}

Binding bind(const void* caller) {
    std::vector<Candidate> candidates = find_candidates();
    const bool was_chosen = candidates.empty();
    if (was_chosen) {
        open_likely_library();
        candidates = find_candidates();
        if (candidates.empty()) {
            throw Error("the library that was opened as the MPI defines no MPI_Init and PMPI_Send",
                        "give AWAKEN_MPI the path of a shared MPI library");
        }
    }
    const Candidate* chosen = &candidates.back();  // the one that the program opened last, unless the caller needs
                                                   // another
    for (const Candidate& candidate : candidates) {
        if (candidate.object.contains(caller) || needs(caller, base_name(candidate.object.path))) {
            chosen = &candidate;
            break;
        }
    }
    Binding binding;
    binding.handle = chosen->handle;
    binding.path = chosen->object.path;
    binding.begin = chosen->object.begin;
    binding.end = chosen->object.end;
    binding.version = library_version(chosen->handle);
    binding.abi = recognise(chosen->handle, chosen->object, binding.version);
    binding.was_chosen = was_chosen;
    if (was_chosen) {
        warn_of_another_launcher(binding);
    } else {
        binding.passed_over = passed_over(chosen->handle);
    }
    return binding;
}

std::mutex resolve_mutex;
std::atomic<const Binding*> bound{nullptr};
bool resolved = false;  // read and written with the lock held

/// Where set_slot() writes: a table aside while the first call is resolved. A thread that makes its first call
/// meanwhile must not find the MPI's function where ours is about to be.
constexpr std::size_t kSlots = 2 * kFunctions + kExtensions;
std::array<void*, kSlots> slots_to_be{};
void** slots = awaken_slots;

constexpr std::array<const char*, kFunctions + kExtensions> kNames = {
#define AWAKEN_FUNCTION(index, name) "MPI_" #name,
#include "functions.inc"
#undef AWAKEN_FUNCTION
#define AWAKEN_EXTENSION(index, name) #name,
#include "extensions.inc"
#undef AWAKEN_EXTENSION
};

/// Stands for a function that the program's MPI lacks. All MPI functions that may be absent return an error code.
template <Abi abi>
int absent_function() {
    return core::unsupported_operation(abi);
}
/// An MPI without the query function has no GPU support.
int no_gpu_support() {
    return 0;
}

/// MPI_Abi_get_version for an MPI without that function. In MPI-5, -1 says that the MPI does not support the standard
/// ABI.
int no_standard_abi(int* const major, int* const minor) {
    *major = *minor = -1;
    return 0;
}

void* absent(const Abi abi, const char* const name) noexcept {
    if (strcmp(name, "MPI_Abi_get_version") == 0) {
        return reinterpret_cast<void*>(&no_standard_abi);
    }
    int (*const function)() = abi == Abi::openmpi ? &absent_function<Abi::openmpi>
                              : abi == Abi::mpi5  ? &absent_function<Abi::mpi5>
                                                  : &absent_function<Abi::mpich>;
    return reinterpret_cast<void*>(function);
}

}  // namespace

const char* name_of(const Function function) noexcept {
    return kNames[static_cast<std::size_t>(function)];
}

void* Binding::symbol(const char* const name) const noexcept {
    return dlsym(handle, name);  // NOLINT(clang-analyzer-core.CallAndMessage): bind() has set it
}

void* Binding::tool_symbol(const char* const name) const noexcept {
    void* const next = dlsym(RTLD_NEXT, name);
    const auto address = reinterpret_cast<std::uintptr_t>(next);
    if (next == nullptr || (address >= begin && address < end)) {
        return nullptr;
    }
    // A second MPI in the process is not a tool.
    Dl_info info{};
    if (dladdr(next, &info) == 0 || info.dli_fname == nullptr) {
        return nullptr;
    }
    void* const object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (object == nullptr) {
        return nullptr;
    }
    Dl_info own{};
    const void* const pmpi_send = dlsym(object, "PMPI_Send");
    const bool is_mpi = pmpi_send != nullptr && dladdr(pmpi_send, &own) != 0 && own.dli_fbase == info.dli_fbase;
    dlclose(object);
    return is_mpi ? nullptr : next;
}

const Binding* binding_in_use() noexcept {
    return bound.load(std::memory_order_acquire);
}

std::string loaded_library() {
    const std::vector<Candidate> candidates = find_candidates();
    return candidates.empty() ? "" : candidates.back().object.path;
}

void* data_symbol(const char* const name) noexcept {
    void* const global = dlsym(RTLD_DEFAULT, name);
    return global != nullptr ? global : dlsym(bound.load(std::memory_order_acquire)->handle, name);
}

void set_slot(const Function function, void* const mpi, void* const pmpi) noexcept {
    const auto index = static_cast<std::size_t>(function);
    // Other threads may be jumping through the table, so each slot is replaced by one atomic store.
    if (index >= kFunctions) {
        __atomic_store_n(&slots[index + kFunctions], mpi, __ATOMIC_RELEASE);
        return;
    }
    __atomic_store_n(&slots[2 * index], mpi, __ATOMIC_RELEASE);
    __atomic_store_n(&slots[2 * index + 1], pmpi, __ATOMIC_RELEASE);
}

void* slot_of(const Function function) noexcept {
    const auto index = static_cast<std::size_t>(function);
    return __atomic_load_n(&slots[index >= kFunctions ? index + kFunctions : 2 * index], __ATOMIC_ACQUIRE);
}

void pass_everything_through(const Binding& binding) noexcept {
    for (int i = 0; i < kFunctions + kExtensions; ++i) {
        const auto function = static_cast<Function>(i);
        const char* const name = name_of(function);
        if (i >= kFunctions) {
            void* const native = binding.symbol(name);
            void* const missing =
                strstr(name, "uery") != nullptr ? reinterpret_cast<void*>(&no_gpu_support) : absent(binding.abi, name);
            set_slot(function, native != nullptr ? native : missing, nullptr);
            continue;
        }
        char profiling_name[80];
        snprintf(profiling_name, sizeof profiling_name, "P%s", name);
        void* const plain = binding.symbol(name);
        void* const profiling = binding.symbol(profiling_name);
        void* const tool = binding.tool_symbol(name);
        void* const missing = absent(binding.abi, name);
        set_slot(function,
                 tool != nullptr    ? tool
                 : plain != nullptr ? plain
                                    : missing,
                 profiling != nullptr ? profiling
                 : plain != nullptr   ? plain
                                      : missing);
    }
}

namespace {

constexpr std::size_t kNoSlot = SIZE_MAX;

/// The slot of an exported symbol. Calls no function of the dynamic loader.
std::size_t slot_of(const char* const symbol) noexcept {
    const bool profiling = symbol[0] == 'P';
    const char* const name = symbol + (profiling ? 1 : 0);
    if (strncmp(name, "MPI", 3) != 0) {
        return kNoSlot;
    }
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (strcmp(kNames[i], name) == 0) {
            const std::size_t of_extension = profiling ? kNoSlot : i + kFunctions;
            return i >= kFunctions ? of_extension : 2 * i + (profiling ? 1 : 0);
        }
    }
    return kNoSlot;
}

/// The addresses of all exported symbols in a scope of the dynamic loader; null for those that it lacks.
std::array<void*, kSlots> addresses_in(void* const scope) noexcept {
    std::array<void*, kSlots> addresses{};
    char profiling_name[80];
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (i >= kFunctions) {
            addresses[i + kFunctions] = dlsym(scope, kNames[i]);
            continue;
        }
        snprintf(profiling_name, sizeof profiling_name, "P%s", kNames[i]);
        addresses[2 * i] = dlsym(scope, kNames[i]);
        addresses[2 * i + 1] = dlsym(scope, profiling_name);
    }
    return addresses;
}

}  // namespace

void withdraw_absent_functions(const Binding& binding) noexcept {
    static const std::array<void*, kSlots> of_mpi = addresses_in(binding.handle);  // there is one MPI
    rewrite_references([](const Reference& reference) -> void* {
        if (!reference.is_weak || reference.is_call || reference.address == nullptr) {
            return reference.address;
        }
        const std::size_t slot = slot_of(reference.symbol);
        const bool is_absent = slot < 2 * kFunctions && of_mpi[slot] == nullptr;
        return is_absent ? nullptr : reference.address;
    });
}

bool is_program_linked_to(const char* const symbol) noexcept {
    bool is_found = false;
    rewrite_references([&is_found, symbol](const Reference& reference) {
        const char* const slash = strrchr(reference.object, '/');
        const bool is_of_mpi = slash != nullptr && strncmp(slash + 1, "libmpi", 6) == 0;
        is_found = is_found || (!is_of_mpi && strcmp(reference.symbol, symbol) == 0);
        return reference.address;
    });
    return is_found;
}

void bind_to_global_scope(void* const module) noexcept {
    const void* const send = dlsym(module, "PMPI_Send");
    dlerror();  // a module without MPI is no error that the program should see
    if (send == nullptr || send == dlsym(RTLD_DEFAULT, "PMPI_Send")) {
        return;
    }
    std::array<void*, kSlots> of_module = addresses_in(module);
    const std::array<void*, kSlots> of_global_scope = addresses_in(RTLD_DEFAULT);
    dlerror();
    const std::vector<LoadedObject> objects = loaded_objects();
    const auto mpi = std::find_if(objects.begin(), objects.end(),
                                  [send](const LoadedObject& object) { return object.contains(send); });
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
        // Calls that a tool of the module's own scope serves stay the tool's.
        if (of_global_scope[slot] == nullptr || mpi == objects.end() || !mpi->contains(of_module[slot])) {
            of_module[slot] = nullptr;
        }
    }
    rewrite_references([&](const Reference& reference) {
        const std::size_t slot = slot_of(reference.symbol);
        if (slot == kNoSlot || of_module[slot] == nullptr) {
            return reference.address;
        }
        const bool is_past_us = reference.address == of_module[slot] || !reference.is_bound;
        return is_past_us ? of_global_scope[slot] : reference.address;
    });
}

namespace {

enum class Origin : std::uintptr_t { program = 0, mpi_plugin = 1, tool = 2 };

Origin find_origin(const LoadedObject& object) {
    if (object.contains(reinterpret_cast<const void*>(&awaken_resolve))) {
        return Origin::tool;  // a tool below that left its frame by a tail call
    }
    const char* const file = base_name(object.path);
    // Open MPI's plug-ins and base libraries, and MPICH's transports.
    for (const char* const prefix :
         {"mca_", "libopen-pal", "libopen-rte", "libopen_mpi", "libmca_", "libpmix", "libfabric", "libuc"}) {
        if (strncmp(file, prefix, strlen(prefix)) == 0) {
            return Origin::mpi_plugin;
        }
    }
    void* const handle = handle_of(object);
    if (handle == nullptr) {
        return Origin::program;
    }
    // A tool may define only a few functions.
    const bool tool = std::any_of(kNames.begin(), kNames.end(),
                                  [&](const char* const name) { return defines(handle, object, name); });
    dlclose(handle);
    return tool ? Origin::tool : Origin::program;
}

/// The origin of each page that a call came from. One word holds the page and the origin.
constexpr std::uintptr_t kPage = 4096;
std::array<std::atomic<std::uintptr_t>, 256> origins_of_pages{};

/// The origins of whole objects, whose look-up takes milliseconds. Used for pages without an entry in the table above.
class ObjectOrigins {
  public:
    [[nodiscard]] Origin find(const void* const address) {
        {
            const std::scoped_lock lock(_mutex);
            if (const auto unloaded = object_counts().unloaded; unloaded != _unloaded) {
                // Other objects may have the same addresses by now.
                _unloaded = unloaded;
                _known.clear();
                for (auto& page : origins_of_pages) {
                    page.store(0, std::memory_order_relaxed);
                }
            }
            for (const Known& known : _known) {
                if (known.object.contains(address)) {
                    return known.origin;
                }
            }
        }
        // Without the lock: the look-ups take the dynamic loader's lock. Another thread may hold that and come here
        // from an object's initialisation.
        for (LoadedObject& object : loaded_objects()) {
            if (object.contains(address)) {
                const Origin origin = find_origin(object);
                const std::scoped_lock lock(_mutex);
                _known.push_back({std::move(object), origin});
                return origin;
            }
        }
        return Origin::program;  // code generated at run time
    }

  private:
    struct Known {
        LoadedObject object;
        Origin origin;
    };
    std::mutex _mutex;
    unsigned long long _unloaded = 0;
    std::vector<Known> _known;
};

Origin origin_of(const void* const address) noexcept {
    const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(address) / kPage;
    auto& slot = origins_of_pages[page % origins_of_pages.size()];
    const std::uintptr_t cached = slot.load(std::memory_order_relaxed);
    if (cached / kPage == page) [[likely]] {
        return static_cast<Origin>(cached % kPage);
    }
    // Kept for the life of the process, like the binding.
    static auto* const objects = new ObjectOrigins;
    const Origin origin = objects->find(address);
    slot.store(page * kPage + static_cast<std::uintptr_t>(origin), std::memory_order_relaxed);
    return origin;
}

}  // namespace

bool from_inside_mpi(const Binding& binding, const void* const return_address) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(return_address);
    if (address - binding.begin < binding.end - binding.begin) {
        return true;
    }
    return origin_of(return_address) == Origin::mpi_plugin;
}

bool from_tool(const void* const return_address) noexcept {
    return origin_of(return_address) == Origin::tool;
}

void die(const std::string& message) noexcept {
    fprintf(stderr, "awaken: %s\n", printable_lines(message).c_str());
    fflush(stderr);
    _exit(2);
}

}  // namespace awaken::loader

extern "C" __attribute__((visibility("hidden"))) void awaken_resolve(const void* const caller) noexcept {
    using namespace awaken;
    // The initialisation of an MPI or another library may call MPI functions while the loader searches for the MPI.
    // Such a call has no target yet.
    static thread_local bool resolving = false;
    if (resolving) {
        loader::die(Error("an MPI function was called while the program's MPI was being looked for, by that MPI's "
                          "PMPI_Get_library_version or by a library that is loaded with it",
                          "load that library after the program's first MPI call, or set AWAKEN=off")
                        .what());
    }
    // Several threads may make the first call at the same time. The others wait until the slots are final.
    const std::scoped_lock lock(loader::resolve_mutex);
    if (loader::resolved) {
        return;
    }
    resolving = true;
    try {
        // Kept for the life of the process: a program may call MPI until its end.
        auto* const binding = new loader::Binding(loader::bind(caller));
        loader::bound.store(binding, std::memory_order_release);
        loader::slots = loader::slots_to_be.data();
        loader::pass_everything_through(*binding);
        loader::withdraw_absent_functions(*binding);
        core::install(*binding);
    } catch (const std::exception& error) {
        loader::die(error.what());
    }
    loader::slots = awaken_slots;
    for (std::size_t i = 0; i < loader::kSlots; ++i) {
        __atomic_store_n(&awaken_slots[i], loader::slots_to_be[i], __ATOMIC_RELEASE);
    }
    loader::resolved = true;
    resolving = false;
}
