// The interface to a GPU runtime: everything that the rest of Awaken may ask of a GPU.
//
// There are three implementations: the CUDA driver (cuda.cpp), the HIP runtime (hip.cpp) and "no GPU" (none.cpp), which
// is a real implementation and not a special case: to it every pointer is host memory and every request for device
// resources fails with a reason. Nothing in this folder knows of MPI; no vendor's name or type appears outside the
// vendor's one file.
//
// Rules that hold for each call:
//  - Any thread may call; the calling thread need not have a current context or device. Whatever context or device was
//    current when a call is entered is current again when it returns, but for make_current().
//  - Nothing throws. A call that can fail returns a Status, because failing is often normal (IPC refused, runtime
//  already
//    shut down) and the caller has another way; results are written through references only when the Status is ok.
//  - No sticky error is left behind in the runtime (cudaGetLastError / hipGetLastError of the program stay as they were
//    as far as the vendor allows it).
//  - Sizes and offsets are bytes. Devices are counted as the runtime counts the visible ones, from 0.
#pragma once

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

/// In bytes. The largest pitch that every vendor's 2-D copy takes (CUDA's CU_DEVICE_ATTRIBUTE_MAX_PITCH).
inline constexpr std::int64_t kLargestPitch = std::numeric_limits<std::int32_t>::max();

/// "cuda", "hip" or "none".
[[nodiscard]] const char* to_string(Vendor vendor) noexcept;

/// Outcome of a call. `code` is the vendor's own number (0 is success); `call` the name of the vendor function that
/// failed.
struct [[nodiscard]] Status {
    int code = 0;
    const char* call = nullptr;         ///< static string; null on success
    const char* description = nullptr;  ///< the vendor's words, static or never freed; null on success

    [[nodiscard]] bool ok() const noexcept { return code == 0; }
    /// "cuIpcOpenMemHandle: invalid argument (1)". Empty on success.
    [[nodiscard]] std::string message() const;
};

/// Status for "this implementation cannot do that", e.g. any device request to the none runtime.
inline constexpr int kUnsupported = -1;
/// Status for "the driver has been shut down" (CUDA_ERROR_DEINITIALIZED and its like): there is nothing left to free.
inline constexpr int kShutDown = -2;
/// Status for "this would wait for work of the program's": nothing was done, and it may be tried again later.
inline constexpr int kBusy = -3;
/// So long a call waits for a device to be idle before it does without what needs that, and MPI_Finalize before it
/// leaves what it would free to the end of the process: longer than copies under way and most kernels take.
inline constexpr std::chrono::milliseconds kPatience{200};

enum class MemoryKind : std::uint8_t {
    host,    ///< ordinary host memory: the runtime does not know it
    pinned,  ///< host memory allocated by or registered with the runtime; the CPU may use it like host memory
    device,  ///< memory of a GPU; the CPU must not touch it
    managed  ///< migrates between host and GPU; the CPU may touch it, IPC refuses it
};

[[nodiscard]] const char* to_string(MemoryKind kind) noexcept;

/// What the runtime says of one pointer.
struct PointerInfo {
    MemoryKind kind = MemoryKind::host;
    int device = -1;          ///< owning device; -1 for host memory
    std::uintptr_t base = 0;  ///< start of the allocation; 0 for host memory
    std::size_t size = 0;     ///< of the allocation; 0 for host memory
    /// Identity of the allocation: changes when memory is freed and another allocation takes the same address.
    /// 0 when the runtime gives none (host memory; some HIP versions).
    std::uint64_t id = 0;
    /// Whether legacy IPC may export it: false for managed, pool (cudaMallocAsync) and virtual-memory-managed memory.
    bool ipc_capable = false;

    /// True when the CPU may read and write it directly and nothing has to be copied by the GPU runtime.
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
/// 64 bytes for both vendors; send it to another process as plain bytes.
struct IpcMemoryHandle {
    unsigned char bytes[64] = {};
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

/// A 2-D copy: `rows` rows of `width` bytes.
struct Copy2D {
    void* destination = nullptr;
    std::size_t destination_pitch = 0;  ///< bytes from one row to the next, >= width
    const void* source = nullptr;
    std::size_t source_pitch = 0;
    std::size_t width = 0;
    std::size_t rows = 0;
};

/// A GPU runtime. One object per process and vendor; see find() for how one comes to be.
class Runtime {
  public:
    virtual ~Runtime() = default;
    Runtime() = default;
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    [[nodiscard]] virtual Vendor vendor() const noexcept = 0;
    [[nodiscard]] virtual Versions versions() const = 0;

    // ---- devices ----------------------------------------------------------------------------------------------------
    /// Number of visible devices; 0 when the runtime is not initialised by the program and cannot be.
    [[nodiscard]] virtual int device_count() noexcept = 0;
    virtual Status device_info(int device, DeviceInfo& info) = 0;
    /// The calling thread's current device; fails when the thread has none.
    virtual Status current_device(int& device) noexcept = 0;
    /// A device to work on where the memory names none: the calling thread's, or else one that the process uses
    /// already, so that no context (hundreds of MiB) comes up where the program does not work. Never negative.
    [[nodiscard]] virtual int device_to_use() noexcept {
        int device = -1;
        return current_device(device).ok() && device >= 0 ? device : 0;
    }
    /// Makes `device` (its primary context) the calling thread's current one and leaves it so, as a program does before
    /// it calls a library that works on the current device (NCCL, RCCL). For programs; the layer never does this.
    virtual Status make_current(int device) noexcept = 0;
    /// Calls `work` with `device` current for the calling thread: for libraries that work on the current device.
    virtual Status run_on(int device, const std::function<void()>& work) = 0;
    /// Whether `device` can map memory of `peer`, and (enable) let it. Enabling twice is success.
    virtual Status can_access_peer(int device, int peer, bool& can) noexcept = 0;
    virtual Status enable_peer_access(int device, int peer) noexcept = 0;

    // ---- pointers ---------------------------------------------------------------------------------------------------
    /// Classifies each of `pointers` into `infos` (same length). Costs a batched driver query each, or two
    /// for the first pointer to device memory after one to host memory (40 to 300 ns, growing with what the process
    /// has mapped). A pointer that the
    /// runtime does not know, and every pointer while the runtime is not initialised or already shut down, is host
    /// memory. Never initialises a runtime by itself where the vendor allows that (CUDA), and leaves no sticky error.
    virtual void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept = 0;
    /// Makes sure that work which the runtime's synchronous-looking calls left behind on this allocation (memset,
    /// device-to-device and pageable copies return early) is over before a later copy reads it, now and for as long as
    /// the allocation lives. CUDA: SYNC_MEMOPS, set once per allocation identity (cached here). HIP: waits for the
    /// legacy default stream of the pointer's device. Call before each copy that touches `pointer`.
    virtual Status order_after_default_stream(const void* pointer, const PointerInfo& info) noexcept = 0;

    /// Waits, by asking again and again, until everything that was given to the legacy default stream of `device` is
    /// over. For memory that another process is about to read, whose streams no order of ours reaches. The program's
    /// other streams are its own to wait for.
    virtual Status finish_default_stream(int device) noexcept = 0;

    /// The same in two steps, for who must not wait: marks what has been given so far, and asks whether that is over,
    /// which uses the mark up. An empty mark stands for nothing, which is over. A runtime that cannot be asked waits
    /// when the mark is made, and leaves it empty.
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

    /// True from when it was noticed that the program has reset a device, and with it freed everything that we had made
    /// there: nothing of that may be touched, by the CPU neither. Calls fail from then on. Noticed when device memory
    /// is classified, and here.
    [[nodiscard]] virtual bool was_reset() noexcept { return false; }

    /// From now on these three ask nothing about the default stream: the program finishes its kernels by itself
    /// before it hands buffers over. Saves a driver query (1.4 us on an H200) where a buffer is shown to another
    /// process. CUDA's synchronous-looking calls stay in order, which SYNC_MEMOPS sees to. For
    /// AWAKEN_DEFAULT_STREAM=trust.
    void trust_default_stream() noexcept { _default_stream_is_trusted.store(true, std::memory_order_relaxed); }

    // ---- calls that wait for all work of a device -------------------------------------------------------------------
    // free, free_pinned, unregister_host, ipc_close, load_kernels and unload_kernels wait until everything is over that
    // the process has given to the device, and a driver may keep all other threads from it meanwhile (see README.md).
    // The program's work may itself wait for what the program does after the MPI call that it is in. So the layer makes
    // such a call only where is_idle() has just answered yes, in a call of the program's: a thread that gives the
    // device work is not in one.

    /// Whether everything is over that the process has given to `device`, -1: to any device that it uses. Asks again
    /// for up to `patience` while it is not. "No" where that cannot be known. CUDA: 20 us (H100). HIP, and CUDA before
    /// 12.5: up to a millisecond. Not to be asked often: a capture into a graph that is under way fails by the question
    /// where it cannot be recognised (one of a non-blocking stream cannot).
    [[nodiscard]] virtual bool is_idle(int device, std::chrono::microseconds patience = {}) noexcept;
    /// The same where something of the caller's goes a slower way otherwise: with kPatience, unless that was in vain
    /// the last time.
    [[nodiscard]] bool is_soon_idle(int device) noexcept {
        const bool idle =
            is_idle(device, _stays_busy.load(std::memory_order_relaxed) ? decltype(kPatience){} : kPatience);
        _stays_busy.store(!idle, std::memory_order_relaxed);
        return idle;
    }
    /// Does that at once if `device` (-1: each one) is idle, else in a later call of do_deferred(): what makes one of
    /// those calls for something that nobody uses any more. Left undone when the process ends.
    void when_idle(int device, std::function<void()> work) noexcept;
    /// Does what was deferred, as far as it can be done now. Costs a load where there is nothing.
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
    /// Frees what allocate, allocate_managed or allocate_from_pool gave, after all work of its device; null is fine.
    virtual Status free(void* pointer) noexcept = 0;
    /// Memory of the kinds that programs allocate and the layer does not. Managed: reachable at one address by the host
    /// and all devices; `device` is where its context is. From the pool: the device's stream-ordered allocator
    /// (cudaMallocAsync, hipMallocAsync), usable in every stream when the call returns. Both fail with kUnsupported
    /// when the driver is too old to have them.
    virtual Status allocate_managed(int device, std::size_t bytes, void*& pointer) noexcept = 0;
    virtual Status allocate_from_pool(int device, std::size_t bytes, void*& pointer) noexcept = 0;
    /// Moves managed memory to `device` in stream order, so that later accesses there do not fault. Optional to the
    /// program's correctness; fails where a device cannot migrate pages on demand.
    virtual Status prefetch(const void* pointer, std::size_t bytes, int device, StreamHandle stream) noexcept = 0;
    /// Page-locked host memory that all devices may reach.
    virtual Status allocate_pinned(std::size_t bytes, void*& pointer) noexcept = 0;
    virtual Status free_pinned(void* pointer) noexcept = 0;
    /// Page-locks host memory that somebody else allocated (shared memory between processes), for copies and for
    /// kernels. Fails where kernels would find the memory at another address than the CPU.
    virtual Status register_host(void* pointer, std::size_t bytes) noexcept = 0;
    virtual Status unregister_host(void* pointer) noexcept = 0;

    // ---- streams and events -----------------------------------------------------------------------------------------
    /// `ordered_after_default`: the stream waits for work in the legacy default stream (a "blocking" stream), which is
    /// what copies of user buffers need. Otherwise it is independent. Of the greatest priority: the few blocks of a
    /// kernel that communicates must not wait until the many of a program's own kernel have all been started, or
    /// nothing would overlap with it.
    virtual Status create_stream(int device, bool ordered_after_default, StreamHandle& stream) noexcept = 0;
    virtual Status destroy_stream(StreamHandle stream) noexcept = 0;
    /// done is true when all work given to the stream so far is over. Asynchronous errors come out here.
    virtual Status query_stream(StreamHandle stream, bool& done) noexcept = 0;
    virtual Status synchronize_stream(StreamHandle stream) noexcept = 0;
    /// Timing is off: the cheapest kind of event.
    virtual Status create_event(int device, EventHandle& event) noexcept = 0;
    virtual Status destroy_event(EventHandle event) noexcept = 0;
    virtual Status record_event(EventHandle event, StreamHandle stream) noexcept = 0;
    virtual Status query_event(EventHandle event, bool& done) noexcept = 0;
    virtual Status stream_wait_event(StreamHandle stream, EventHandle event) noexcept = 0;

    // ---- copies -----------------------------------------------------------------------------------------------------
    /// Any direction: host, pinned, managed, device of any GPU, memory opened by IPC. The runtime finds out what the
    /// pointers are (unified addressing). Pageable host memory may make the call block until it was read.
    virtual Status copy(void* destination, const void* source, std::size_t bytes, StreamHandle stream) noexcept = 0;
    /// Several copies, in any order among themselves, after what the stream was given before. Where the runtime takes
    /// them in one call, each costs a fraction of a call of its own.
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
    /// Handle of the whole allocation that holds `pointer`; `offset` receives where in it the pointer lies, counted
    /// from what ipc_open returns in the other process.
    virtual Status ipc_export(const void* pointer, IpcMemoryHandle& handle, std::size_t& offset) noexcept = 0;
    /// Maps memory of another process into this one for `device`. Fails in the exporting process itself.
    virtual Status ipc_open(const IpcMemoryHandle& handle, int device, void*& base) noexcept = 0;
    virtual Status ipc_close(void* base) noexcept = 0;

    // ---- kernels ----------------------------------------------------------------------------------------------------
    /// Compiles the text of a kernel (CUDA/HIP C++, extern "C" kernels) with the vendor's run-time compiler for
    /// `device` and loads it. `log` receives the compiler's messages. Fails with kUnsupported when there is no such
    /// compiler, with kBusy where loading waits for the device's work and there is some.
    virtual Status load_kernels(int device, const char* name, const char* source, ModuleHandle& module,
                                std::string& log) = 0;
    virtual Status unload_kernels(ModuleHandle module) noexcept = 0;
    virtual Status find_kernel(ModuleHandle module, const char* name, KernelHandle& kernel) noexcept = 0;
    /// `arguments` points at pointers to the arguments, in order, as cuLaunchKernel takes them.
    virtual Status launch(KernelHandle kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, StreamHandle stream,
                          void** arguments) noexcept = 0;

  protected:
    [[nodiscard]] bool trusts_default_stream() const noexcept {
        return _default_stream_is_trusted.load(std::memory_order_relaxed);
    }

  private:
    std::atomic<bool> _default_stream_is_trusted{false};
    std::atomic<bool> _stays_busy{false};
    struct Deferred {
        int device;
        std::function<void()> work;
    };
    std::mutex _deferred_mutex;
    std::vector<Deferred> _deferred;
    std::atomic<std::size_t> _deferred_count{0};
    std::chrono::steady_clock::time_point _deferred_until{};
};

/// The vendor whose driver this machine has, judged by device nodes (or AWAKEN_EMULATE) without loading anything; none
/// when there is none. For questions that programs ask before they have loaded a GPU runtime.
[[nodiscard]] Vendor expected_vendor() noexcept;

/// True when this machine could have a GPU at all: a driver's device node exists, a GPU runtime is already loaded in
/// this process, or the emulated driver was asked for (AWAKEN_EMULATE). When it is false and stays false, an MPI
/// program needs no service from us, and is given none. Costs a few system calls; ask once.
[[nodiscard]] bool driver_present() noexcept;

/// The runtime that this process uses, or the none runtime as long as there is no other.
///
/// With Choice::automatic a vendor's library is used only once the program itself has loaded it; a program may do so
/// late, so this is asked again for each MPI call: while nothing was found it costs one look at the loader's counter of
/// loaded objects (15 ns), afterwards one atomic load. Objects live as long as the process. With Choice::cuda or
/// Choice::hip the library is loaded if need be, and initialised; not finding it is reported by `why_not`. That is for
/// programs of our own.
[[nodiscard]] Runtime& find(Choice choice, std::string* why_not = nullptr);

/// The same for a program of somebody else's: of the chosen vendor, and nothing is initialised that the program has not
/// initialised itself. Which devices it sees is decided then, by variables that it may set late, from its rank.
[[nodiscard]] Runtime& find_in_use(Choice choice, std::string* why_not = nullptr);
/// Whether a library of the chosen vendor (cuda or hip) is loaded or can be, which is done.
[[nodiscard]] bool can_be_loaded(Choice choice, std::string& why_not);

/// The none runtime, e.g. for tests.
[[nodiscard]] Runtime& none() noexcept;

}  // namespace awaken::gpu
