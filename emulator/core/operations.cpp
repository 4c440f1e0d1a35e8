// SPDX-License-Identifier: Apache-2.0
#include "core/operations.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <shared_mutex>
#include <thread>

#include "core/capture.h"

namespace awaken::emulator {
namespace {

/// Copies from pageable memory up to this size are taken at the call; the device gets them later.
constexpr std::size_t kLargestSnapshot = std::size_t{64} << 10;

/// One side of a copy or fill.
struct Place {
    std::shared_ptr<Allocation> allocation;  ///< null for pageable host memory

    [[nodiscard]] bool pageable() const noexcept { return !allocation; }
    [[nodiscard]] bool on_device() const noexcept { return allocation && allocation->on_device(); }
    [[nodiscard]] bool synchronous() const noexcept { return allocation && allocation->synchronous; }
};

/// Bytes from the first to the last one that `rows` rows touch; nothing on overflow.
bool extent_of(std::size_t width, std::size_t rows, std::size_t pitch, std::size_t& extent) noexcept {
    std::size_t whole = 0;
    return !__builtin_mul_overflow(rows - 1, pitch, &whole) && !__builtin_add_overflow(whole, width, &extent);
}

/// The memory at `address`, if `device` may touch all of `bytes` there.
bool locate(std::uintptr_t address, std::size_t bytes, int device, Place& place) {
    Memory& memory = core().memory();
    place.allocation = memory.find(address);
    if (place.allocation) {
        // Pageable memory may follow registered memory; anything else ends with its allocation.
        if (memory.reachable(*place.allocation, address, bytes, device)) {
            return true;
        }
        if (place.allocation->kind != MemoryKind::registered) {
            return false;
        }
        place.allocation = nullptr;
        return true;
    }
    return address != 0 && !memory.in_device_range(address);
}

/// Whether a kernel that gets this address may use it. Without XNACK or HMM, memory from malloc is out of its reach; a
/// null pointer is none that it uses.
bool kernels_may_touch(std::uintptr_t address) {
    Core& machine = core();
    if (address == 0 || machine.configuration().pageable_memory || machine.memory().in_device_range(address) ||
        machine.memory().find(address)) {
        return true;
    }
    std::fprintf(stderr,
                 "awaken emulator: a kernel was given the address %#jx, which no GPU reaches: memory from malloc takes "
                 "%s\n",
                 static_cast<std::uintmax_t>(address),
                 machine.configuration().vendor == Vendor::hip ? "HSA_XNACK=1" : "AWAKEN_TEST_FAULTS=pageable-memory");
    return false;
}

void move_rows(const CopyRequest& request) {
    std::byte* const destination = core().memory().accessible(request.destination);
    const std::byte* const source = core().memory().accessible(request.source);
    for (std::size_t row = 0; row < request.rows; ++row) {
        std::memmove(destination + row * request.destination_pitch, source + row * request.source_pitch, request.width);
    }
}

void fill_rows(const FillRequest& request) {
    std::byte* destination = core().memory().accessible(request.destination);
    for (std::size_t row = 0; row < request.rows; ++row, destination += request.pitch) {
        if (request.element_bytes == 1) {
            std::memset(destination, static_cast<int>(request.value & 0xffU), request.count);
            continue;
        }
        for (std::size_t element = 0; element < request.count; ++element) {
            std::memcpy(destination + element * request.element_bytes, &request.value, request.element_bytes);
        }
    }
}

/// Of this process, for awaken_emulator_operations.
std::atomic<std::uint64_t> copies_given{0}, kernels_given{0}, events_answered{0}, pointers_queried{0};

/// For awaken_emulator_interrupt_copy; the length is written first.
std::atomic<std::size_t> interrupted_from{0};
std::atomic<void (*)()> halfway_through{nullptr};

/// Copies, and calls whoever wants to be called in the midst of it.
void move(const CopyRequest& request) {
    void (*halfway)() = halfway_through.load(std::memory_order_acquire);
    if (halfway == nullptr || request.width < interrupted_from.load(std::memory_order_relaxed) || request.rows != 1 ||
        !halfway_through.compare_exchange_strong(halfway, nullptr)) {
        move_rows(request);
        return;
    }
    CopyRequest part = request;
    part.width = request.width / 2;
    move_rows(part);
    halfway();
    part.destination += part.width;
    part.source += part.width;
    part.width = request.width - part.width;
    move_rows(part);
}

/// Threads in a call that waits for all work, or that opens memory of another process; for awaken_emulator_waiting.
std::atomic<unsigned> waiting_inside{0};

/// Says once of each call that it would have waited.
Error refuse_to_wait(const char* const call) {
    static auto* const lock_of_told = new std::mutex;
    static auto* const told = new std::set<std::string>;
    const std::scoped_lock lock(*lock_of_told);
    if (told->insert(call).second) {
        std::fprintf(stderr,
                     "awaken emulator: %s was called while there was unfinished work that it waits for, and "
                     "AWAKEN_TEST_BUSY=error makes that an error; call it when the streams are done\n",
                     call);
    }
    return Error::not_ready;
}

/// Waits for `unfinished`, or refuses to, and then does `body`.
Error after_work(const char* const call, const std::function<std::vector<Ticket>()>& unfinished,
                 const std::function<Error()>& body) {
    const std::vector<Ticket> tickets = unfinished();
    if (!tickets.empty() && core().configuration().busy_calls == BusyCalls::error) {
        return refuse_to_wait(call);
    }
    ++waiting_inside;
    for (const Ticket& ticket : tickets) {
        ticket.wait();
    }
    --waiting_inside;
    return body();
}

/// Does `body` when all work is over: of `context` with CUDA, or of all contexts of the device where memory has none;
/// of `device` with HIP. CUDA locks the contexts meanwhile.
Error when_idle(const char* const call, Context* const context, const int device, const std::function<Error()>& body) {
    const bool cuda = core().configuration().vendor == Vendor::cuda;
    const std::vector<Context*> contexts =
        cuda && context ? std::vector<Context*>{context} : core().contexts_of(device);
    std::vector<std::unique_lock<std::shared_mutex>> locks;
    if (cuda) {
        for (Context* const one : contexts) {
            locks.emplace_back(one->exclusive);
        }
    }
    const auto unfinished = [&] {
        std::vector<Ticket> tickets;
        for (Context* const one : contexts) {
            std::vector<Ticket> more = one->unfinished();
            std::move(more.begin(), more.end(), std::back_inserter(tickets));
        }
        return tickets;
    };
    return after_work(call, unfinished, body);
}

/// The same for what is done to the allocation that starts at `address`.
Error when_unused(const char* const call, const std::uintptr_t address, const std::function<Error()>& body,
                  const Error otherwise = Error::invalid_value) {
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    const bool found = allocation && allocation->base == address;
    return found ? when_idle(call, allocation->context, allocation->device, body) : otherwise;
}

void leave_behind(const Place& place, const Ticket& ticket) {
    if (place.allocation) {
        place.allocation->add_pending(ticket);
    }
}

}  // namespace

Error copy(Context& context, const CopyRequest& request, const std::shared_ptr<Stream>& stream, Synchrony synchrony) {
    if (!stream) {
        return Error::invalid_handle;
    }
    if (const Error sticky = context.sticky; sticky != Error::success) {
        return sticky;
    }
    if (request.width == 0 || request.rows == 0) {
        return Error::success;
    }
    if (request.rows > 1 && (request.destination_pitch < request.width || request.source_pitch < request.width)) {
        return Error::invalid_value;
    }
    std::size_t source_extent = 0;
    std::size_t destination_extent = 0;
    if (!extent_of(request.width, request.rows, request.source_pitch, source_extent) ||
        !extent_of(request.width, request.rows, request.destination_pitch, destination_extent)) {
        return Error::invalid_value;
    }
    Place source;
    Place destination;
    if (!locate(request.source, source_extent, context.device, source) ||
        !locate(request.destination, destination_extent, context.device, destination)) {
        return Error::invalid_value;
    }
    copies_given.fetch_add(1, std::memory_order_relaxed);
    const bool fails = core().copy_fails();
    // `data` is what the source lies in, where that is the work's own.
    const auto work_on = [fails, &context](const CopyRequest& given,
                                           std::shared_ptr<std::vector<std::byte>> data = nullptr) -> Work {
        return [given, data = std::move(data), fails, &context] {
            if (fails) {
                context.sticky = Error::launch_failed;
            } else {
                move(given);
            }
        };
    };
    const Work work = work_on(request);
    const std::size_t bytes = request.width * request.rows;
    // In a graph, memory is read when the graph runs.
    if (is_capturing(*stream)) {
        stream->submit(work);
        return Error::success;
    }
    const bool snapshot = source.pageable() && destination.on_device() && bytes <= kLargestSnapshot;
    const bool synchronous_memory = source.synchronous() || destination.synchronous();
    const bool host_waits = source.pageable() || destination.pageable();

    const auto taken = [&]() -> Work {
        auto data = std::make_shared<std::vector<std::byte>>(bytes);
        const auto* const from = reinterpret_cast<const std::byte*>(request.source);
        for (std::size_t row = 0; row < request.rows; ++row) {
            std::memcpy(data->data() + row * request.width, from + row * request.source_pitch, request.width);
        }
        CopyRequest copied = request;
        copied.source = reinterpret_cast<std::uintptr_t>(data->data());
        copied.source_pitch = request.width;
        return work_on(copied, std::move(data));
    };

    if (synchrony == Synchrony::stream) {
        if (snapshot) {
            stream->submit(taken());
        } else if (host_waits) {
            stream->run(work);
        } else {
            stream->submit(work);
        }
        return host_waits && !snapshot ? context.sticky.load() : Error::success;
    }
    const bool within_devices = source.on_device() && destination.on_device();
    if (!synchronous_memory && (within_devices || snapshot)) {
        const Ticket ticket = stream->submit(snapshot ? taken() : work, Start::late);
        leave_behind(source, ticket);
        leave_behind(destination, ticket);
        return Error::success;
    }
    stream->run(work);
    return context.sticky;
}

Error fill(Context& context, const FillRequest& request, const std::shared_ptr<Stream>& stream, Synchrony synchrony) {
    if (!stream) {
        return Error::invalid_handle;
    }
    if (const Error sticky = context.sticky; sticky != Error::success) {
        return sticky;
    }
    if (request.count == 0 || request.rows == 0) {
        return Error::success;
    }
    std::size_t width = 0;
    std::size_t extent = 0;
    if (__builtin_mul_overflow(request.count, std::size_t{request.element_bytes}, &width) ||
        (request.rows > 1 && request.pitch < width) || !extent_of(width, request.rows, request.pitch, extent) ||
        request.destination % request.element_bytes != 0) {
        return Error::invalid_value;
    }
    Place place;
    // A fill needs memory that the runtime knows.
    if (!locate(request.destination, extent, context.device, place) || place.pageable()) {
        return Error::invalid_value;
    }
    const auto work = [request] { fill_rows(request); };
    if (synchrony == Synchrony::stream) {
        stream->submit(work);
    } else if (place.on_device() && !place.synchronous()) {
        leave_behind(place, stream->submit(work, Start::late));
    } else {
        stream->run(work);
    }
    return Error::success;
}

Error allocate(Context& context, std::size_t bytes, std::uintptr_t& address) {
    if (const Error sticky = context.sticky; sticky != Error::success) {
        return sticky;
    }
    return core().memory().allocate_device(&context, context.device, bytes, nullptr, address);
}

Error allocate_from_pool(const std::shared_ptr<Pool>& pool, std::size_t bytes, std::uintptr_t& address) {
    Error error = core().memory().allocate_device(nullptr, pool->device, bytes, pool, address);
    if (error == Error::out_of_memory) {
        // Frees that are still queued may make room, as in a real pool.
        core().synchronize_device(pool->device);
        error = core().memory().allocate_device(nullptr, pool->device, bytes, pool, address);
    }
    return error;
}

Error free_in_order(Stream& stream, std::uintptr_t address) {
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    if (!allocation || allocation->base != address) {
        return Error::invalid_value;
    }
    if (allocation->kind != MemoryKind::pool && allocation->kind != MemoryKind::device) {
        return Error::invalid_value;
    }
    // Graphs have no nodes for memory here.
    if (const Error error = spoil_capture(stream, Error::not_supported); error != Error::success) {
        return error;
    }
    stream.submit([address] {
        // A second free of the same memory was refused above unless both were queued; then this one finds nothing.
        if (core().memory().free(address, {MemoryKind::pool, MemoryKind::device}) != Error::success) {
            std::fputs("awaken emulator: memory was freed twice in stream order\n", stderr);
        }
    });
    return Error::success;
}

Error free_device(const char* const call, const std::uintptr_t address) {
    const auto free = [&] {
        return core().memory().free(address, {MemoryKind::device, MemoryKind::pool, MemoryKind::managed});
    };
    return address == 0 ? Error::success : when_unused(call, address, free);
}

Error free_pinned(const char* const call, const std::uintptr_t address) {
    return when_unused(call, address, [&] { return core().memory().free(address, {MemoryKind::pinned}); });
}

Error unregister_host(const char* const call, const std::uintptr_t address) {
    constexpr Error kUnknown = Error::host_memory_not_registered;
    return when_unused(
        call, address, [&] { return core().memory().free(address, {MemoryKind::registered}, kUnknown); }, kUnknown);
}

Error open_import(Context& context, const IpcHandle& handle, std::uintptr_t& address) {
    Memory& memory = core().memory();
    const std::scoped_lock lock(core().opening);
    const std::uint64_t opened_before = memory.mappings_opened();
    const Error error = memory.import_handle(context, handle, address);
    // An allocation that is mapped already is only counted once more.
    if (memory.mappings_opened() != opened_before) {
        ++waiting_inside;
        std::this_thread::sleep_for(core().configuration().ipc_open_time.of(handle.size));
        --waiting_inside;
    }
    return error;
}

Error close_import(const char* const call, const std::uintptr_t address, const bool default_stream_only) {
    const auto close = [&] { return core().memory().free(address, {MemoryKind::imported}); };
    if (!default_stream_only) {
        return when_unused(call, address, close);
    }
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    if (!allocation || allocation->base != address) {
        return Error::invalid_value;
    }
    return after_work(call, [&] { return allocation->context->legacy->unfinished(); }, close);
}

Error set_synchronous(std::uintptr_t address, bool on) {
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    if (!allocation || !allocation->on_device()) {
        return Error::invalid_value;
    }
    allocation->synchronous = on;
    if (on) {
        allocation->wait_for_pending();
    }
    return Error::success;
}

Error synchronize(Context& context) {
    context.synchronize();
    return context.sticky;
}

Error synchronize(Stream& stream) {
    if (const Error error = question_allowed(stream); error != Error::success) {
        return error;
    }
    stream.synchronize();
    return stream.context().sticky;
}

Error query(Stream& stream) {
    if (const Error error = question_allowed(stream); error != Error::success) {
        return error;
    }
    // In this order: an operation that fails between the two looks must not pass for a success.
    const bool idle = stream.idle();
    if (const Error sticky = stream.context().sticky; sticky != Error::success) {
        return sticky;
    }
    return idle ? Error::success : Error::not_ready;
}

Error query(const Event& event) {
    if (event.capture() != 0) {
        return Error::captured_event;
    }
    const bool done = event.done();
    if (const Error sticky = event.context().sticky; sticky != Error::success) {
        return sticky;
    }
    if (done) {
        events_answered.fetch_add(1, std::memory_order_relaxed);
    }
    return done ? Error::success : Error::not_ready;
}

Error synchronize(const Event& event) {
    if (event.capture() != 0) {
        return Error::captured_event;
    }
    for (const Ticket& ticket : event.tickets()) {
        ticket.wait();
    }
    return event.context().sticky;
}

Error wait_in_stream(Stream& stream, const Event& event) {
    if (const std::uint64_t capture = event.capture(); capture != 0 && join_capture(stream, capture)) {
        return Error::success;
    }
    if (const Error error = spoil_capture(stream, Error::capture_isolation); error != Error::success) {
        return error;
    }
    if (!event.done()) {
        stream.submit([] {}, Start::prompt, event.tickets());
    }
    return Error::success;
}

Error end_capture(const Stream& stream, void*& handle) {
    std::shared_ptr<Graph> graph;
    const Error error = end_capture(stream, graph);
    handle = nullptr;
    if (error == Error::success) {
        handle = core().graphs.add(std::move(graph));
    } else {
        core().graphs.remove(graph.get());  // if it was asked for
    }
    return error;
}

void* captured_graph(const Stream& stream) {
    std::shared_ptr<Graph> graph = graph_of(stream);
    return graph ? core().graphs.add(std::move(graph)) : nullptr;
}

Error make_user_object(void* const pointer, void (*const destroy)(void*), void*& handle) {
    handle = core().user_objects.add(std::make_shared<UserObject>(pointer, destroy));
    return Error::success;
}

Error keep_with_graph(const void* const handle, const void* const object, const bool move) {
    const std::shared_ptr<Graph> graph = core().graphs.find(handle);
    std::shared_ptr<UserObject> kept = core().user_objects.find(object);
    if (!graph || !kept) {
        return Error::invalid_value;
    }
    graph->objects.push_back(std::move(kept));
    if (move) {
        core().user_objects.remove(object);
    }
    return Error::success;
}

Error instantiate_graph(const void* const handle, void*& executable) {
    const std::shared_ptr<Graph> graph = core().graphs.find(handle);
    if (!graph) {
        return Error::invalid_value;
    }
    executable = core().executable_graphs.add(std::make_shared<Graph>(*graph));
    return Error::success;
}

Error launch_graph(const void* const executable, const std::shared_ptr<Stream>& stream) {
    const std::shared_ptr<Graph> graph = core().executable_graphs.find(executable);
    if (!graph) {
        return Error::invalid_value;
    }
    Work all = [graph, &context = stream->context()] {
        for (const Work& work : graph->works) {
            if (!context.gave_up) {
                work();
            }
        }
    };
    if (graph->memory_waits) {
        stream->submit_memory_wait(std::move(all));
    } else {
        stream->submit(std::move(all));
    }
    return Error::success;
}

namespace {
thread_local bool in_host_function = false;
}

void call_in_stream(Stream& stream, Work function) {
    stream.submit([function = std::move(function)] {
        in_host_function = true;
        function();
        in_host_function = false;
    });
}

UserObject::~UserObject() {
    const bool before = std::exchange(in_host_function, true);
    _destroy(_pointer);
    in_host_function = before;
}

bool called_from_host_function() {
    static std::atomic<bool> told{false};
    if (in_host_function && !told.exchange(true)) {
        std::fputs(
            "awaken emulator: a host function or stream callback made a call of the GPU's library, which drivers do "
            "not permit; let another thread make it\n",
            stderr);
    }
    return in_host_function;
}

bool can_access_peer(int device, int peer) {
    return device != peer && !core().configuration().faults.no_peer;
}

Error enable_peer(Context& context, int peer) {
    if (!can_access_peer(context.device, peer)) {
        return peer == context.device ? Error::invalid_device : Error::peer_access_unsupported;
    }
    const std::scoped_lock lock(context.peers_lock);
    return context.peers.insert(peer).second ? Error::success : Error::peer_access_already_enabled;
}

Error disable_peer(Context& context, int peer) {
    const std::scoped_lock lock(context.peers_lock);
    return context.peers.erase(peer) != 0 ? Error::success : Error::peer_access_not_enabled;
}

Error load_module(const char* const call, Context& context, const void* image, const void*& handle) {
    auto module = std::make_shared<Module>();
    if (!read_image(image, module->kernels)) {
        return Error::no_binary_for_device;
    }
    module->context = &context;
    const auto load = [&] {
        handle = core().modules.add(std::move(module));
        return Error::success;
    };
    return core().configuration().vendor == Vendor::cuda ? when_idle(call, &context, context.device, load) : load();
}

Error unload_module(const char* const call, const void* handle) {
    const std::shared_ptr<Module> module = core().modules.find(handle);
    if (!module) {
        return Error::invalid_handle;
    }
    return when_idle(call, module->context, module->context->device, [&] {
        if (!core().modules.remove(handle)) {
            return Error::invalid_handle;
        }
        core().functions.remove_if([&](const Function& function) { return function.module == handle; });
        return Error::success;
    });
}

Error find_function(const void* handle, const char* name, const void*& function_handle) {
    const std::shared_ptr<Module> module = core().modules.find(handle);
    if (!module) {
        return Error::invalid_handle;
    }
    const kernels::host::Kernel* kernel = find_kernel(name);
    if (!kernel || std::find(module->kernels.begin(), module->kernels.end(), name) == module->kernels.end()) {
        return Error::not_found;
    }
    auto function = std::make_shared<Function>();
    function->context = module->context;
    function->module = handle;
    function->kernel = *kernel;
    function_handle = core().functions.add(std::move(function));
    return Error::success;
}

Error launch_kernel(const void* handle, const Launch& launch, const std::shared_ptr<Stream>& stream, void** arguments,
                    void** extra) {
    if (!stream) {
        return Error::invalid_handle;
    }
    const std::shared_ptr<Function> function = core().functions.find(handle);
    if (!function) {
        return Error::invalid_handle;
    }
    if (const Error sticky = stream->context().sticky; sticky != Error::success) {
        return sticky;
    }
    const kernels::Index3& block = launch.block;
    const kernels::Index3& grid = launch.grid;
    if (block.x == 0 || block.y == 0 || block.z == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0) {
        return Error::invalid_value;
    }
    if (std::uint64_t{block.x} * block.y * block.z > Model::threads_per_block || grid.x > unsigned{Model::grid_x} ||
        grid.y > unsigned{Model::grid_yz} || grid.z > unsigned{Model::grid_yz} ||
        launch.shared_bytes > std::size_t{Model::shared_bytes_per_block}) {
        return Error::invalid_value;
    }
    const kernels::host::Kernel& kernel = function->kernel;

    // The parameters are taken at the call; the program's copies may be gone when the kernel runs.
    std::size_t total = 0;
    std::vector<std::size_t> offsets(kernel.parameter_count);
    for (std::size_t position = 0; position < kernel.parameter_count; ++position) {
        const std::size_t alignment = kernel.parameter_alignments[position];
        total = (total + alignment - 1) / alignment * alignment;
        offsets[position] = total;
        total += kernel.parameter_sizes[position];
    }
    // One buffer with all parameters, laid out as above: {1, buffer, 2, &size, 0 or 3}, the numbers being markers.
    const std::byte* packed = nullptr;
    std::size_t packed_bytes = std::numeric_limits<std::size_t>::max();
    for (void** at = extra; at && *at && reinterpret_cast<std::uintptr_t>(*at) != 3; at += 2) {
        if (reinterpret_cast<std::uintptr_t>(at[0]) == 1) {
            packed = static_cast<const std::byte*>(at[1]);
        }
        if (reinterpret_cast<std::uintptr_t>(at[0]) == 2) {
            packed_bytes = *static_cast<const std::size_t*>(at[1]);
        }
    }
    if (total != 0 && !arguments && (!packed || packed_bytes < total)) {
        return Error::invalid_value;
    }

    struct Aligned {
        alignas(16) std::byte bytes[16];
    };
    auto values = std::make_shared<std::vector<Aligned>>((total + sizeof(Aligned) - 1) / sizeof(Aligned));
    auto* const storage = reinterpret_cast<std::byte*>(values->data());
    bool faults = false;
    for (std::size_t position = 0; position < kernel.parameter_count; ++position) {
        const void* from = arguments ? arguments[position] : packed + offsets[position];
        std::memcpy(storage + offsets[position], from, kernel.parameter_sizes[position]);
        if (kernel.parameter_is_pointer[position]) {
            std::uintptr_t address = 0;
            std::memcpy(&address, from, sizeof address);
            faults = faults || !kernels_may_touch(address);
        }
    }
    kernels_given.fetch_add(1, std::memory_order_relaxed);
    stream->submit([kernel, launch, values, offsets = std::move(offsets), &context = stream->context(),
                    fails = core().kernel_fails() || faults] {
        if (fails) {
            context.sticky = Error::launch_failed;
            return;
        }
        std::vector<void*> pointers(offsets.size());
        auto* const base = reinterpret_cast<std::byte*>(values->data());
        for (std::size_t position = 0; position < offsets.size(); ++position) {
            pointers[position] = base + offsets[position];
        }
        run_kernel(kernel, launch, pointers.data());
    });
    return Error::success;
}

int find_device_by_bus_id(const char* text) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    if (!text ||
        (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 && std::sscanf(text, "%x:%x", &bus, &slot) != 2)) {
        return -1;
    }
    for (int device = 0; device < core().device_count(); ++device) {
        if (core().device(device).pci_bus == static_cast<int>(bus)) {
            return device;
        }
    }
    return -1;
}

void count_pointer_query() noexcept {
    pointers_queried.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace awaken::emulator

std::uint64_t awaken_emulator_pointer_queries() {
    return awaken::emulator::pointers_queried.load(std::memory_order_relaxed);
}

void awaken_emulator_operations(std::uint64_t* const copies, std::uint64_t* const kernels,
                                std::uint64_t* const events) {
    *copies = awaken::emulator::copies_given.load(std::memory_order_relaxed);
    *kernels = awaken::emulator::kernels_given.load(std::memory_order_relaxed);
    *events = awaken::emulator::Event::records();
}

std::uint64_t awaken_emulator_answers() {
    return awaken::emulator::events_answered.load(std::memory_order_relaxed);
}

void awaken_emulator_mappings(std::uint64_t* const opened, std::uint64_t* const closed) {
    *opened = awaken::emulator::core().memory().mappings_opened();
    *closed = awaken::emulator::core().memory().mappings_closed();
}

void awaken_emulator_waiting(unsigned* const inside, unsigned* const held_up) {
    *inside = awaken::emulator::waiting_inside.load();
    *held_up = awaken::emulator::calls_held_up();
}

void awaken_emulator_interrupt_copy(const std::size_t least_bytes, void (*const halfway)()) {
    awaken::emulator::interrupted_from.store(least_bytes, std::memory_order_relaxed);
    awaken::emulator::halfway_through.store(halfway, std::memory_order_release);
}
