// SPDX-License-Identifier: Apache-2.0
// What the calls of all front ends do, once. A front end decodes its arguments, finds the context, and calls these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/core.h"
#include "core/kernel.h"

namespace awaken::emulator {

/// Whether a call has finished its work when it returns. Even `host` ones return early where real drivers do: fills of
/// device memory, copies within devices, small copies from pageable memory. Those are late by Configuration::delay.
enum class Synchrony : std::uint8_t { host, stream };

/// `rows` rows of `width` bytes; one row for a plain copy.
struct CopyRequest {
    std::uintptr_t destination = 0;
    std::size_t destination_pitch = 0;
    std::uintptr_t source = 0;
    std::size_t source_pitch = 0;
    std::size_t width = 0;
    std::size_t rows = 1;
};

/// `rows` rows of `count` elements of 1, 2 or 4 bytes.
struct FillRequest {
    std::uintptr_t destination = 0;
    std::size_t pitch = 0;
    std::uint32_t value = 0;
    unsigned element_bytes = 1;
    std::size_t count = 0;
    std::size_t rows = 1;
};

[[nodiscard]] Error copy(Context& context, const CopyRequest& request, const std::shared_ptr<Stream>& stream,
                         Synchrony synchrony);
[[nodiscard]] Error fill(Context& context, const FillRequest& request, const std::shared_ptr<Stream>& stream,
                         Synchrony synchrony);

[[nodiscard]] Error allocate(Context& context, std::size_t bytes, std::uintptr_t& address);
/// From a pool, in stream order (which here means: at once).
[[nodiscard]] Error allocate_from_pool(const std::shared_ptr<Pool>& pool, std::size_t bytes, std::uintptr_t& address);
[[nodiscard]] Error free_in_order(Stream& stream, std::uintptr_t address);
// What drivers let wait for all work of the memory's context (CUDA) or device (HIP). With CUDA it also locks the
// context meanwhile, see Context::enter. `call` is the name by which the program knows it.

/// Frees device, pool or managed memory; address 0 is fine.
[[nodiscard]] Error free_device(const char* call, std::uintptr_t address);
[[nodiscard]] Error free_pinned(const char* call, std::uintptr_t address);
[[nodiscard]] Error unregister_host(const char* call, std::uintptr_t address);
/// Takes as long as Configuration::ipc_open_time says. No other call of the process enters meanwhile.
[[nodiscard]] Error open_import(Context& context, const IpcHandle& handle, std::uintptr_t& address);
/// With HIP from ROCm 6 on it waits for the default stream, as the CLR of ROCm does.
[[nodiscard]] Error close_import(const char* call, std::uintptr_t address, bool default_stream_only = false);
/// With HIP it does not wait.
[[nodiscard]] Error load_module(const char* call, Context& context, const void* image, const void*& module);
[[nodiscard]] Error unload_module(const char* call, const void* module);

/// Waits for what synchronous-looking calls left behind on the allocation, and makes later ones on it finish in the
/// call.
[[nodiscard]] Error set_synchronous(std::uintptr_t address, bool on);

/// Success, or the failure that the context keeps.
[[nodiscard]] Error synchronize(Context& context);
[[nodiscard]] Error synchronize(Stream& stream);
[[nodiscard]] Error query(Stream& stream);
[[nodiscard]] Error query(const Event& event);
[[nodiscard]] Error synchronize(const Event& event);
[[nodiscard]] Error wait_in_stream(Stream& stream, const Event& event);
/// Ends the capture of a stream: the handle of what was recorded, null when something spoiled it.
[[nodiscard]] Error end_capture(const Stream& stream, void*& graph);
/// The handle of the graph that grows while the stream is captured; null when it is not.
[[nodiscard]] void* captured_graph(const Stream& stream);
/// An object that graphs can keep, which tells `destroy` its end.
[[nodiscard]] Error make_user_object(void* pointer, void (*destroy)(void*), void*& object);
/// With `move` the graph gets the caller's reference.
[[nodiscard]] Error keep_with_graph(const void* graph, const void* object, bool move);
[[nodiscard]] Error instantiate_graph(const void* graph, void*& executable);
[[nodiscard]] Error launch_graph(const void* executable, const std::shared_ptr<Stream>& stream);
/// A function of the program, run in the stream's order on the stream's thread.
void call_in_stream(Stream& stream, Work function);
/// Whether the calling thread is in such a function, from where drivers permit no calls. Says so once on stderr.
[[nodiscard]] bool called_from_host_function();

[[nodiscard]] bool can_access_peer(int device, int peer);
[[nodiscard]] Error enable_peer(Context& context, int peer);
[[nodiscard]] Error disable_peer(Context& context, int peer);

[[nodiscard]] Error find_function(const void* module, const char* name, const void*& function);
/// `arguments` and `extra` as cuLaunchKernel and hipModuleLaunchKernel take them: one of the two is null.
[[nodiscard]] Error launch_kernel(const void* function, const Launch& launch, const std::shared_ptr<Stream>& stream,
                                  void** arguments, void** extra);

/// Counts for awaken_emulator_pointer_queries().
void count_pointer_query() noexcept;

/// The device with this PCI address ("0000:10:00.0"), or -1.
[[nodiscard]] int find_device_by_bus_id(const char* text);

}  // namespace awaken::emulator

/// Copies (2-D ones count as one), kernels and records of events that this process has given to the driver so far. For
/// tests of how much work something takes; programs find it by name in libawaken-emulator.so.
extern "C" void awaken_emulator_operations(std::uint64_t* copies, std::uint64_t* kernels, std::uint64_t* events);

/// How often this process has asked what memory a pointer points to. Found as above.
extern "C" std::uint64_t awaken_emulator_pointer_queries();

/// How often this process has asked about an event and was told that it is over, which is what real drivers take their
/// time for. Found as above.
extern "C" std::uint64_t awaken_emulator_answers();

/// How often this process has mapped memory of another one, and unmapped it. Found as above.
extern "C" void awaken_emulator_mappings(std::uint64_t* opened, std::uint64_t* closed);

/// How many threads of this process are in a call that waits for all work of a context or device, or that opens memory
/// of another process, and how many wait to get into a call that such a call holds up. Found as above.
extern "C" void awaken_emulator_waiting(unsigned* inside, unsigned* held_up);

/// The next copy of this process that moves at least so many bytes calls `halfway` when half of them have moved, in the
/// thread that copies. For tests of what becomes of a transfer whose processes end in its midst.
extern "C" void awaken_emulator_interrupt_copy(std::size_t least_bytes, void (*halfway)());
