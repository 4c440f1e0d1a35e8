// SPDX-License-Identifier: Apache-2.0
// The interface to a GPU runtime: everything that the rest of Awaken may ask of a GPU.
//
// There are three implementations: the CUDA driver (cuda.cpp), the HIP runtime (hip.cpp) and "no GPU" (none.cpp). "No
// GPU" is a real implementation and not a special case: to it every pointer is host memory, and every request for
// device resources fails with a reason. Nothing in this folder knows of MPI. A vendor's type appears only in the
// vendor's own files.
//
// Rules that hold for each call:
// - Any thread may call. The calling thread need not have a current context or device. The context or device that is
//   current when a call is entered is current again when the call returns. make_current() is the exception.
// - Nothing throws. A call that can fail returns a Status, because failing is often normal (the runtime refuses IPC, or
//   is already shut down) and the caller has another way. A call writes results through references only when the Status
//   is ok.
// - A call leaves no sticky error in the runtime. The program's cudaGetLastError / hipGetLastError stay as they were,
//   as far as the vendor allows it.
// - Sizes and offsets are bytes. Devices are numbered from 0, as the runtime numbers the visible ones.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/gpu_choice.h"

namespace awaken::gpu {

enum class Vendor : std::uint8_t { none, cuda, hip };

/// All but none.
inline constexpr std::array kVendors = {Vendor::cuda, Vendor::hip};

/// In bytes. Every vendor's 2-D copy takes a pitch of up to this size (CUDA's CU_DEVICE_ATTRIBUTE_MAX_PITCH).
inline constexpr std::int64_t kLargestPitch = std::numeric_limits<std::int32_t>::max();

/// "cuda", "hip" or "none".
[[nodiscard]] const char* to_string(Vendor vendor) noexcept;

/// What find() is given to get this vendor's runtime.
[[nodiscard]] Choice choice_of(Vendor vendor) noexcept;

/// Outcome of a call. `code` is the vendor's own number (0 is success). `call` is the name of the vendor function that
/// failed.
struct [[nodiscard]] Status {
    int code = 0;
    const char* call = nullptr;         ///< static string; null on success
    const char* description = nullptr;  ///< the vendor's words, static or never freed; null on success

    [[nodiscard]] bool ok() const noexcept { return code == 0; }
    /// "cuIpcOpenMemHandle: invalid argument (1)". Empty on success.
    [[nodiscard]] std::string message() const;
};

/// Status for "this implementation cannot do that". An example is any device request to the none runtime.
inline constexpr int kUnsupported = -1;
/// Status for "the driver has been shut down" (CUDA_ERROR_DEINITIALIZED and its like). There is nothing left to free.
inline constexpr int kShutDown = -2;
/// Status for "this call would wait for work of the program". The call did nothing, and the caller may try again later.
inline constexpr int kBusy = -3;
/// The process that made a handle has ended it since; another handle of the memory may do.
inline constexpr int kExpired = -4;
/// A call waits at most this long until a device is idle. After that the call does without the work that needs an idle
/// device, and MPI_Finalize leaves memory unfreed until the process ends. Copies under way and most kernels take less
/// time than this.
inline constexpr std::chrono::milliseconds kPatience{200};

enum class MemoryKind : std::uint8_t {
    host,    ///< ordinary host memory: the runtime does not know it
    pinned,  ///< host memory allocated by or registered with the runtime; the CPU may use it like host memory
    device,  ///< memory of a GPU; the CPU must not touch it
    managed  ///< migrates between host and GPU; the CPU may touch it; IPC refuses it
};

[[nodiscard]] const char* to_string(MemoryKind kind) noexcept;

/// What the runtime reports about one pointer.
struct PointerInfo {
    MemoryKind kind = MemoryKind::host;
    int device = -1;          ///< owning device; -1 for host memory
    std::uintptr_t base = 0;  ///< start of the allocation; 0 for host memory
    std::size_t size = 0;     ///< of the allocation; 0 for host memory
    /// Identity of the allocation. It changes when memory is freed and another allocation takes the same address. The
    /// value is 0 when the runtime gives none (host memory; some HIP versions).
    std::uint64_t id = 0;
    /// Whether legacy IPC may export the memory. False for managed, pool (cudaMallocAsync) and virtual-memory-managed
    /// memory.
    bool ipc_capable = false;
    /// Whether file descriptors may export the memory: it was made with cuMemCreate for that, as PyTorch's expandable
    /// segments are. Its `base` and `size` are those of the reserved addresses, which many mappings may share, and `id`
    /// is that of the mapping at the pointer.
    bool descriptor_capable = false;

    /// True when the CPU may read and write the memory directly, so that the GPU runtime has nothing to copy.
    [[nodiscard]] bool host_accessible() const noexcept {
        return kind == MemoryKind::host || kind == MemoryKind::pinned;
    }
};

struct DeviceInfo {
    std::string name;          ///< "NVIDIA H200"
    std::string pci_bus_id;    ///< "0000:1b:00.0"
    std::string architecture;  ///< "sm_90", "gfx90a"
    unsigned char uuid[16] = {};
    std::size_t memory_bytes = 0;
    int multiprocessors = 0;
    bool host_visible_memory = false;  ///< the CPU may load and store device memory (AMD large BAR)
};

struct Versions {
    std::string runtime;      ///< "CUDA driver 13.0", "HIP 6.2 (ROCm)"
    std::string library;      ///< path of the loaded library
    int driver = 0;           ///< the vendor's number: 13000; HIP_VERSION style 60200000
    std::string description;  ///< one line for the report
};

/// Opaque handles. They belong to the Runtime that made them.
struct StreamHandle {
    void* value = nullptr;
    int device = -1;
};
struct EventHandle {
    void* value = nullptr;
    int device = -1;
};
struct GraphHandle {
    void* value = nullptr;  ///< can be launched
    int device = -1;
};
/// 64 bytes for both vendors; send it to another process as plain bytes.
struct IpcMemoryHandle {
    unsigned char bytes[64] = {};
};
/// Whole mappings of device memory, side by side (see PointerInfo::descriptor_capable).
struct MappedRun {
    std::uintptr_t base = 0;
    std::size_t size = 0;
    std::uint64_t id = 0;      ///< changes when any of them is mapped anew
    std::size_t mappings = 0;  ///< their number
};
/// A compiled module holding kernels, for one device.
struct ModuleHandle {
    void* value = nullptr;
    int device = -1;
};
struct KernelHandle {
    void* value = nullptr;
    int device = -1;
};

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

/// One copy of several.
struct Copy1D {
    void* destination = nullptr;
    const void* source = nullptr;
    std::size_t bytes = 0;
};

/// A 2-D copy of `rows` rows of `width` bytes.
struct Copy2D {
    void* destination = nullptr;
    std::size_t destination_pitch = 0;  ///< bytes from one row to the next, >= width
    const void* source = nullptr;
    std::size_t source_pitch = 0;
    std::size_t width = 0;
    std::size_t rows = 0;
};

/// A GPU runtime. There is one object per process and vendor; find() makes it.
class Runtime {
  public:
    virtual ~Runtime() = default;
    Runtime() = default;
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    [[nodiscard]] virtual Vendor vendor() const noexcept = 0;
    [[nodiscard]] virtual Versions versions() const = 0;

    // ---- how vendors differ -----------------------------------------------------------------------------------------
    // Callers ask for the property and not for the vendor, so that a further vendor needs no change in them.
    /// False for the none runtime alone.
    [[nodiscard]] bool is_present() const noexcept { return vendor() != Vendor::none; }
    /// The type that programs give their streams, "cudaStream_t". Empty for the none runtime.
    [[nodiscard]] virtual const char* stream_type() const noexcept { return ""; }
    /// Whether a thread has a current device before the program has chosen one, so that current_device() says nothing
    /// of the device that the program will use.
    [[nodiscard]] virtual bool threads_begin_with_a_device() const noexcept { return false; }
    /// Whether GDRCopy, where it is installed, maps this vendor's device memory for the CPU.
    [[nodiscard]] virtual bool works_with_gdrcopy() const noexcept { return false; }

    // ---- devices ----------------------------------------------------------------------------------------------------
    /// Number of visible devices. The value is 0 when the program has not initialised the runtime and we cannot do so.
    [[nodiscard]] virtual int device_count() noexcept = 0;
    virtual Status device_info(int device, DeviceInfo& info) = 0;
    /// Gives the calling thread's current device. Fails when the thread has none.
    virtual Status current_device(int& device) noexcept = 0;
    /// The device to work on where the memory names none. This is the calling thread's device, or else a device that
    /// the process uses already. So no context (hundreds of MiB) comes up on a device that the program does not use.
    /// Never negative.
    [[nodiscard]] virtual int device_to_use() noexcept {
        int device = -1;
        return current_device(device).ok() && device >= 0 ? device : 0;
    }
    /// Makes `device` (its primary context) the calling thread's current one and leaves it so. A program does this
    /// before it calls a library that works on the current device (NCCL, RCCL). Only programs call this; the layer
    /// never does.
    virtual Status make_current(int device) noexcept = 0;
    /// Calls `work` with `device` current for the calling thread. For libraries that work on the current device.
    virtual Status run_on(int device, const std::function<void()>& work) = 0;
    /// Whether `device` can map memory of `peer`; enable_peer_access lets it. Enabling twice is success.
    virtual Status can_access_peer(int device, int peer, bool& can) noexcept = 0;
    virtual Status enable_peer_access(int device, int peer) noexcept = 0;

    // ---- pointers ---------------------------------------------------------------------------------------------------
    /// Classifies each of `pointers` into `infos` (same length). Each pointer costs a batched driver query. The first
    /// pointer to device memory after one to host memory costs two. A query takes 40 to 300 ns, growing with how much
    /// the process has mapped. A pointer that the runtime does not know counts as host memory. So does every pointer
    /// while the runtime is not initialised or already shut down. The call never initialises a runtime by itself where
    /// the vendor allows that (CUDA), and leaves no sticky error.
    virtual void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept = 0;
    /// The runtime's synchronous-looking calls may leave work behind on this allocation: memset, device-to-device and
    /// pageable copies return early. This call makes sure that such work is over before a later copy reads the memory.
    /// On CUDA that holds for as long as the allocation lives: the call sets SYNC_MEMOPS once per allocation identity
    /// and remembers it. On HIP the call waits for the legacy default stream of the pointer's device. Call it before
    /// each copy that touches `pointer`.
    virtual Status order_after_default_stream(const void* pointer, const PointerInfo& info) noexcept = 0;

    /// Waits, by asking again and again, until the legacy default stream of `device` has finished everything that it
    /// was given. The layer calls this before another process reads the memory, since no stream order reaches into that
    /// process. The program itself waits for its other streams.
    virtual Status finish_default_stream(int device) noexcept = 0;

    /// The same in two steps, for a caller that must not wait. The first call marks the work that the stream was given
    /// so far. The second asks whether that work is over, and uses the mark up. An empty mark stands for no work, which
    /// is over. A runtime that cannot be asked waits when the mark is made, and leaves the mark empty.
    virtual Status mark_default_stream(int device, EventHandle& mark) noexcept {
        mark = {};
        return finish_default_stream(device);
    }
    virtual Status query_default_stream(EventHandle& mark, bool& over) noexcept {
        over = mark.value == nullptr;
        return {};
    }
    /// Gives up a mark that nobody asks about any more.
    virtual void drop_default_stream(EventHandle& mark) noexcept { mark = {}; }

    /// True once the runtime has noticed that the program has reset a device. The reset frees everything that we made
    /// on that device. Nobody may touch that memory any more, not even the CPU, and calls fail from then on. The
    /// runtime notices a reset here and when it classifies device memory.
    [[nodiscard]] virtual bool was_reset() noexcept { return false; }

    /// From now on these three calls ask nothing about the default stream: the program finishes its kernels by itself
    /// before it hands buffers over. This saves a driver query (1.4 us on an H200) where another process is to read a
    /// buffer. CUDA's synchronous-looking calls stay in order, since SYNC_MEMOPS sees to that. For
    /// AWAKEN_DEFAULT_STREAM=trust.
    void trust_default_stream() noexcept { _default_stream_is_trusted.store(true, std::memory_order_relaxed); }

    /// What these calls have cost since time_default_stream(): the time that trust_default_stream() saves.
    struct StreamQuestions {
        std::uint64_t asked = 0;        ///< marks, and calls that waited
        std::uint64_t waited_long = 0;  ///< calls that waited longer than a question takes: for kernels of the program
        std::chrono::nanoseconds time{0};
    };
    void time_default_stream() noexcept { _default_stream_is_timed.store(true, std::memory_order_relaxed); }
    [[nodiscard]] virtual StreamQuestions stream_questions() const noexcept { return {}; }

    // ---- calls that wait for all work of a device -------------------------------------------------------------------
    // free, free_pinned, unregister_host, ipc_close, load_kernels and unload_kernels wait until the device has finished
    // everything that the process gave to it. A driver may keep all other threads away from the device meanwhile (see
    // README.md). The program's work on the device may in turn wait for something that the program does after the
    // current MPI call. So the layer makes these calls only inside an MPI call of the program, right after is_idle()
    // has answered yes. A thread inside such a call gives the device no work.

    /// Whether `device` has finished everything that the process gave to it. For -1 the question is about every device
    /// that the process uses. Asks again for up to `patience` while the device is busy. The answer is "no" where nobody
    /// can know. The question costs 20 us on CUDA (H100), and up to a millisecond on HIP and on CUDA before 12.5. Ask
    /// rarely: the question makes a capture into a graph that is under way fail, where the runtime cannot recognise the
    /// capture (it recognises that of a non-blocking stream after note_captured()).
    [[nodiscard]] virtual bool is_idle(int device, std::chrono::microseconds patience = {}) noexcept;
    /// The stream is captured. No device is idle until that is over.
    void note_captured(StreamHandle stream) noexcept;
    /// The stream may go. Call before it does.
    void forget_captured(StreamHandle stream) noexcept;
    /// The same as is_idle(), for a caller that takes a slower way on "no". Waits up to kPatience, unless the last such
    /// wait was in vain.
    [[nodiscard]] bool is_soon_idle(int device) noexcept {
        const bool idle =
            is_idle(device, _stays_busy.load(std::memory_order_relaxed) ? decltype(kPatience){} : kPatience);
        _stays_busy.store(!idle, std::memory_order_relaxed);
        return idle;
    }
    /// Does `work` at once if `device` (-1: each one) is idle, else in a later call of do_deferred(). `work` makes one
    /// of the calls above for something that nobody uses any more. It stays undone when the process ends.
    void when_idle(int device, std::function<void()> work) noexcept;
    /// Does the deferred work, as far as that is possible now. Costs one load where nothing was deferred.
    void do_deferred(std::chrono::microseconds patience = {}) noexcept;
    void free_when_idle(void* pointer, int device) noexcept {
        if (pointer != nullptr) {
            when_idle(device, [this, pointer] { static_cast<void>(free(pointer)); });
        }
    }
    void free_pinned_when_idle(void* pointer) noexcept {
        if (pointer != nullptr) {
            when_idle(-1, [this, pointer] { static_cast<void>(free_pinned(pointer)); });
        }
    }
    void unload_when_idle(ModuleHandle module) noexcept {
        when_idle(module.device, [this, module] { static_cast<void>(unload_kernels(module)); });
    }

    // ---- memory -----------------------------------------------------------------------------------------------------
    virtual Status allocate(int device, std::size_t bytes, void*& pointer) noexcept = 0;
    /// Frees memory from allocate, allocate_managed or allocate_from_pool, after all work of its device. Null is fine.
    virtual Status free(void* pointer) noexcept = 0;
    /// Memory of the kinds that programs allocate and the layer does not. Managed memory is reachable at one address by
    /// the host and all devices; `device` is where its context is. Pool memory comes from the device's stream-ordered
    /// allocator (cudaMallocAsync, hipMallocAsync) and is usable in every stream when the call returns. Both calls fail
    /// with kUnsupported when the driver is too old to have them.
    virtual Status allocate_managed(int device, std::size_t bytes, void*& pointer) noexcept = 0;
    virtual Status allocate_from_pool(int device, std::size_t bytes, void*& pointer) noexcept = 0;
    /// Moves managed memory to `device` in stream order, so that later accesses there do not fault. The program is
    /// correct without this call. Fails where a device cannot migrate pages on demand.
    virtual Status prefetch(const void* pointer, std::size_t bytes, int device, StreamHandle stream) noexcept = 0;
    /// Page-locked host memory that all devices may reach.
    virtual Status allocate_pinned(std::size_t bytes, void*& pointer) noexcept = 0;
    virtual Status free_pinned(void* pointer) noexcept = 0;
    /// Page-locks host memory that somebody else allocated (shared memory between processes), for copies and for
    /// kernels. Fails where kernels would see the memory at another address than the CPU.
    virtual Status register_host(void* pointer, std::size_t bytes) noexcept = 0;
    virtual Status unregister_host(void* pointer) noexcept = 0;

    // ---- streams and events -----------------------------------------------------------------------------------------
    /// With `ordered_after_default` the stream waits for work in the legacy default stream (a "blocking" stream).
    /// Copies of user buffers need such a stream. Otherwise the stream is independent. It has the greatest priority: a
    /// communication kernel has few blocks, and these must not wait until all the blocks of a program's own kernel have
    /// started. Otherwise no communication would overlap with that kernel.
    virtual Status create_stream(int device, bool ordered_after_default, StreamHandle& stream) noexcept = 0;
    virtual Status destroy_stream(StreamHandle stream) noexcept = 0;
    /// `done` is true when the stream has finished all work given to it so far. This call reports asynchronous errors.
    virtual Status query_stream(StreamHandle stream, bool& done) noexcept = 0;
    virtual Status synchronize_stream(StreamHandle stream) noexcept = 0;
    /// The number of the capture by which the program collects the stream's work into a graph; 0 for none. None, where
    /// the runtime knows no captures.
    virtual Status capture_of(StreamHandle /*stream*/, std::uint64_t& capture) noexcept {
        capture = 0;
        return {};
    }
    /// Where a captured stream has come to: another number when more has been captured.
    virtual Status capture_point(StreamHandle /*stream*/, std::uint64_t& /*point*/) noexcept { return no_graphs(); }
    /// Calls `gone(argument)` when the graph that is captured has gone, and all that was instantiated from it. That
    /// call comes at any time in any thread, and must not call the runtime.
    virtual Status when_graph_is_gone(StreamHandle /*stream*/, void (* /*gone*/)(void*), void* /*argument*/) noexcept {
        return no_graphs();
    }
    /// Collects what the stream is given into a graph, from one call to the other, by whichever thread.
    virtual Status begin_capture(StreamHandle /*stream*/) noexcept { return no_graphs(); }
    virtual Status end_capture(StreamHandle /*stream*/, GraphHandle& /*graph*/) noexcept { return no_graphs(); }
    virtual Status launch_graph(GraphHandle /*graph*/, StreamHandle /*stream*/) noexcept { return no_graphs(); }
    virtual Status destroy_graph(GraphHandle /*graph*/) noexcept { return no_graphs(); }
    /// Timing is off, which makes the cheapest kind of event.
    virtual Status create_event(int device, EventHandle& event) noexcept = 0;
    virtual Status destroy_event(EventHandle event) noexcept = 0;
    virtual Status record_event(EventHandle event, StreamHandle stream) noexcept = 0;
    virtual Status query_event(EventHandle event, bool& done) noexcept = 0;
    virtual Status stream_wait_event(StreamHandle stream, EventHandle event) noexcept = 0;

    // ---- copies -----------------------------------------------------------------------------------------------------
    /// Copies in any direction: host, pinned, managed, device of any GPU, memory opened by IPC. The runtime finds out
    /// what the pointers are (unified addressing). With pageable host memory the call may block until the runtime has
    /// read it.
    virtual Status copy(void* destination, const void* source, std::size_t bytes, StreamHandle stream) noexcept = 0;
    /// Starts several copies after the earlier work of the stream. Their order among themselves is open. Where the
    /// runtime takes them in one call, each copy costs a fraction of a call of its own.
    virtual Status copy_batch(std::span<const Copy1D> copies, StreamHandle stream) noexcept {
        for (const Copy1D& each : copies) {
            if (const Status status = copy(each.destination, each.source, each.bytes, stream); !status.ok()) {
                return status;
            }
        }
        return {};
    }
    virtual Status copy_2d(const Copy2D& copy, StreamHandle stream) noexcept = 0;
    virtual Status fill(void* destination, unsigned char value, std::size_t bytes, StreamHandle stream) noexcept = 0;

    // ---- sharing between processes ----------------------------------------------------------------------------------
    /// Gives the handle of the whole allocation that holds `pointer`. `offset` receives the distance of `pointer` from
    /// the address that ipc_open returns in the other process.
    virtual Status ipc_export(const void* pointer, IpcMemoryHandle& handle, std::size_t& offset) noexcept = 0;
    /// Maps memory of another process into this one for `device`. Fails in the exporting process itself.
    virtual Status ipc_open(const IpcMemoryHandle& handle, int device, void*& base) noexcept = 0;
    virtual Status ipc_close(void* base) noexcept = 0;

    /// Finds the mappings that hold these bytes of a descriptor_capable allocation of `device`. Not ok when some of the
    /// bytes are not mapped.
    virtual Status find_run(int /*device*/, const void* /*pointer*/, std::size_t /*bytes*/,
                            MappedRun& /*run*/) noexcept {
        return {kUnsupported, "find_run", "this runtime exports no memory by descriptors"};
    }
    /// Gives a handle of the run for ipc_open, and holds it. Its descriptors keep the memory from being freed. So once
    /// nobody holds the handle, they may be closed, and ipc_open then says kExpired. Not ok when all descriptors that a
    /// process may hand out are held.
    virtual Status export_run(int /*device*/, const MappedRun& /*run*/, IpcMemoryHandle& /*handle*/) noexcept {
        return {kUnsupported, "export_run", "this runtime exports no memory by descriptors"};
    }
    /// Holds a handle that export_run() gave. False when it is over.
    [[nodiscard]] virtual bool hold_export(const IpcMemoryHandle& /*handle*/) noexcept { return false; }
    /// Call once for each time that the handle was held. `idle_bytes`: all handles together that nobody holds may stand
    /// for so much memory.
    virtual void release_export(const IpcMemoryHandle& /*handle*/, std::size_t /*idle_bytes*/) noexcept {}
    /// Nobody will hold the handle again: the memory is gone.
    virtual void end_export(const IpcMemoryHandle& /*handle*/) noexcept {}
    /// Closes the descriptors of handles that were not held for some seconds.
    virtual void close_idle_exports() noexcept {}

    // ---- kernels ----------------------------------------------------------------------------------------------------
    /// Loads the kernels of a text (CUDA/HIP C++, extern "C" kernels) for `device`: code that was compiled with Awaken,
    /// else what the vendor's run-time compiler makes. `log` receives its messages. Fails with kUnsupported when there
    /// is neither, and with kBusy where loading waits for the device's work and the device has some.
    virtual Status load_kernels(int device, const char* name, const char* source, ModuleHandle& module,
                                std::string& log) = 0;
    virtual Status unload_kernels(ModuleHandle module) noexcept = 0;
    virtual Status find_kernel(ModuleHandle module, const char* name, KernelHandle& kernel) noexcept = 0;
    /// `arguments` points at pointers to the arguments, in order, as cuLaunchKernel takes them.
    virtual Status launch(KernelHandle kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, StreamHandle stream,
                          void** arguments) noexcept = 0;

  protected:
    [[nodiscard]] static Status no_graphs() noexcept { return {kUnsupported, "graphs", "this runtime has none"}; }
    /// Whether a stream is captured that note_captured() was told of.
    [[nodiscard]] bool is_captured() noexcept;
    [[nodiscard]] bool trusts_default_stream() const noexcept {
        return _default_stream_is_trusted.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool times_default_stream() const noexcept {
        return _default_stream_is_timed.load(std::memory_order_relaxed);
    }

  private:
    std::atomic<bool> _default_stream_is_trusted{false};
    std::atomic<bool> _default_stream_is_timed{false};
    std::atomic<bool> _stays_busy{false};
    std::mutex _captured_mutex;
    std::vector<StreamHandle> _captured;
    std::atomic<bool> _has_captured{false};
    struct Deferred {
        int device;
        std::function<void()> work;
    };
    std::mutex _deferred_mutex;
    std::vector<Deferred> _deferred;
    std::atomic<std::size_t> _deferred_count{0};
    std::chrono::steady_clock::time_point _deferred_until{};
};

/// The vendor whose driver this machine has, or none. Judges by device nodes (or AWAKEN_EMULATE) and loads nothing.
/// Answers questions that programs ask before they have loaded a GPU runtime.
[[nodiscard]] Vendor expected_vendor() noexcept;

/// True when this machine could have a GPU at all: a driver's device node exists, this process has already loaded a GPU
/// runtime, or the user asked for the emulated driver (AWAKEN_EMULATE). While this is false, an MPI program needs no
/// service from us and gets none. Costs a few system calls; ask once.
[[nodiscard]] bool driver_present() noexcept;

/// The runtime that this process uses, or the none runtime as long as there is no other.
///
/// With Choice::automatic this process uses a vendor's library only once the program itself has loaded it. A program
/// may load it late, so the layer calls this again for each MPI call. While nothing was found a call costs one look at
/// the loader's counter of loaded objects (15 ns), afterwards one atomic load. Objects live as long as the process.
/// With Choice::cuda or Choice::hip the call loads and initialises the library if need be, and `why_not` says why it
/// was not found. That is for programs of our own.
[[nodiscard]] Runtime& find(Choice choice, std::string* why_not = nullptr);

/// The same for a program of somebody else's. Takes only the chosen vendor's runtime, and initialises nothing that the
/// program has not initialised itself. Initialising decides which devices the program sees, by variables that the
/// program may set late, from its rank.
[[nodiscard]] Runtime& find_in_use(Choice choice, std::string* why_not = nullptr);
/// Whether a library of the chosen vendor (cuda or hip) is loaded. Loads it if need be.
[[nodiscard]] bool can_be_loaded(Choice choice, std::string& why_not);

/// The none runtime, e.g. for tests.
[[nodiscard]] Runtime& none() noexcept;

}  // namespace awaken::gpu
