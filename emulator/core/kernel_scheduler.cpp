// SPDX-License-Identifier: Apache-2.0
// Runs a kernel's threads as fibers on one host thread.
//
// A fiber runs until its kernel returns, waits at a barrier or pauses in a loop. All blocks of a launch are under way
// together as long as there is room (kMostFibers), so that blocks may wait for each other, as co-resident blocks on a
// GPU may; further blocks start as earlier ones end. A fiber's stack goes to the next fiber once it has returned: a
// kernel without barriers needs a single one.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/kernel.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace awaken::emulator {
namespace {

using kernels::Index3;

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kMostFibers = 4096;  // each takes several of the 65530 mappings of a process
#else
constexpr std::size_t kMostFibers = 16384;
#endif

/// A stack with a page without access below it, so that an overflow faults instead of corrupting.
class Stack {
  public:
    Stack() {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        _length = kStackBytes + page;
        _memory = mmap(nullptr, _length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (_memory == MAP_FAILED || mprotect(_memory, page, PROT_NONE) != 0) {
            std::fputs("awaken emulator: no memory for the stack of a kernel's thread\n", stderr);
            std::abort();
        }
        _usable = static_cast<char*>(_memory) + page;
    }
    ~Stack() { munmap(_memory, _length); }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    [[nodiscard]] void* base() const noexcept { return _usable; }

  private:
    void* _memory = nullptr;
    void* _usable = nullptr;
    std::size_t _length = 0;
};

#if defined(__SANITIZE_THREAD__)
/// What ThreadSanitizer knows of who runs a block's threads. It is a megabyte, and a launch has thousands of threads
/// that may wait together, so they do not have one each. Nothing is missed by that: each switch tells the sanitizer
/// that what comes after it comes later. Reports may name frames of other threads of the block.
class TsanFiber {
  public:
    TsanFiber() : _fiber(__tsan_create_fiber(0)) {}
    ~TsanFiber() { __tsan_destroy_fiber(_fiber); }
    TsanFiber(const TsanFiber&) = delete;
    TsanFiber& operator=(const TsanFiber&) = delete;
    [[nodiscard]] void* get() const noexcept { return _fiber; }
    /// Whether it may serve so many threads more. Their last calls do not return, and stay noted on a stack of limited
    /// depth.
    [[nodiscard]] bool serves(const unsigned threads) noexcept {
        constexpr unsigned kMostThreads = 4096;
        return (_threads += threads) <= kMostThreads;
    }

  private:
    void* const _fiber;
    unsigned _threads = 0;
};
/// Of blocks that have ended, since to make one takes most of the time of a launch.
constexpr std::size_t kSpareTsanFibers = 64;
thread_local std::vector<std::unique_ptr<TsanFiber>> spare_tsan_fibers;
#endif

#if defined(__x86_64__)

extern "C" {
/// Saves what a function must preserve on the current stack, whose top goes to `*from`, and goes on where `to` was
/// saved. swapcontext would ask the kernel for the signal mask each time, and a launch switches thousands of times.
void awaken_emulator_switch(void** from, void* to) noexcept;
}
asm(R"(
.text
.hidden awaken_emulator_switch
.globl awaken_emulator_switch
.type awaken_emulator_switch, @function
awaken_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size awaken_emulator_switch, . - awaken_emulator_switch
)");

/// Where a fiber, or the host thread, goes on.
class Position {
  public:
    /// To go on at the start of `entry`, which never returns.
    void start(void* stack, std::size_t bytes, void (*entry)()) noexcept {
        constexpr std::size_t kSaved = 6;  // registers
        auto* top = reinterpret_cast<std::uintptr_t*>(static_cast<char*>(stack) + bytes);
        // A function expects the stack 8 bytes below a multiple of 16, as a call leaves it.
        *--top = 0;
        *--top = reinterpret_cast<std::uintptr_t>(entry);
        for (std::size_t i = 0; i < kSaved; ++i) {
            *--top = 0;
        }
        _stack = top;
    }
    static void go(Position& from, const Position& to) noexcept { awaken_emulator_switch(&from._stack, to._stack); }

  private:
    void* _stack = nullptr;
};

#else

class Position {
  public:
    void start(void* stack, std::size_t bytes, void (*entry)()) noexcept {
        getcontext(&_context);
        _context.uc_stack.ss_sp = stack;
        _context.uc_stack.ss_size = bytes;
        _context.uc_link = nullptr;
        makecontext(&_context, entry, 0);
    }
    static void go(Position& from, const Position& to) noexcept { swapcontext(&from._context, &to._context); }

  private:
    ucontext_t _context{};
};

#endif

struct SharedMemory {
    struct Release {
        void operator()(void* memory) const noexcept { std::free(memory); }
    };
    using Pointer = std::unique_ptr<void, Release>;

    static Pointer make(std::size_t bytes, std::size_t alignment) {
        alignment = alignment < 16 ? 16 : alignment;
        const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
        Pointer memory(std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded));
        if (!memory) {
            std::fputs("awaken emulator: no memory for a block's shared memory\n", stderr);
            std::abort();
        }
        std::memset(memory.get(), 0, rounded);
        return memory;
    }
};

struct BlockState {
    Index3 index{};
    unsigned fibers = 0;   ///< threads that have not been taken apart
    unsigned running = 0;  ///< threads that have not returned
    unsigned waiting = 0;  ///< of those, at the barrier
    std::uint64_t phase = 0;
    SharedMemory::Pointer dynamic;
    std::unordered_map<const void*, SharedMemory::Pointer> shared;
#if defined(__SANITIZE_THREAD__)
    std::unique_ptr<TsanFiber> tsan;
#endif
};

struct Fiber {
    Position position;
    std::unique_ptr<Stack> stack;
    BlockState* block = nullptr;
    Index3 thread{};
    std::uint64_t waits_for_phase = 0;  ///< the barrier is open once the block's phase has come to this
    bool finished = false;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
#endif
};

class Scheduler;
thread_local Scheduler* active = nullptr;

/// Stacks of fibers that have returned, for the next launch on this host thread: mapping hundreds anew for each launch
/// would take longer than the launch.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kSpareStacks = kMostFibers;
#else
constexpr std::size_t kSpareStacks = 12288;
#endif
thread_local std::vector<std::unique_ptr<Stack>> spare_stacks;

class Scheduler {
  public:
    Scheduler(const kernels::host::Kernel& kernel, const Launch& launch, void** arguments)
        : _kernel(kernel), _launch(launch), _arguments(arguments), _stacks(std::move(spare_stacks)) {}
    ~Scheduler() {
        if (_stacks.size() > kSpareStacks) {
            _stacks.resize(kSpareStacks);
        }
        spare_stacks = std::move(_stacks);
    }
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    void run() {
        const std::uint64_t blocks = std::uint64_t{_launch.grid.x} * _launch.grid.y * _launch.grid.z;
        const std::uint64_t threads = std::uint64_t{_launch.block.x} * _launch.block.y * _launch.block.z;
        // A GPU keeps no order among blocks that it has room for. Every second launch begins with its last block.
        thread_local bool backwards = false;
        backwards = !backwards;
        const bool from_the_end = backwards && blocks <= kMostFibers / threads;
        std::uint64_t next = 0;
        while (next < blocks || !_fibers.empty()) {
            while (next < blocks && _fibers.size() < kMostFibers) {
                start_block(from_the_end ? blocks - 1 - next : next);
                ++next;
            }
            bool advanced = round();
            // Everything waits for something outside this launch. Thousands of threads may be at barriers meanwhile.
            // Where processors are few, whom they wait for needs this one.
            constexpr unsigned kEager = 50;
            for (unsigned looks = 0; !advanced && !_fibers.empty(); ++looks) {
                if (looks < kEager) {
                    sched_yield();
                } else {
                    constexpr timespec kRest{0, 20'000};
                    nanosleep(&kRest, nullptr);
                }
                advanced = look_again();
            }
        }
    }

    void entered() noexcept {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(_current->fake_stack, &_host_stack, &_host_stack_size);
#endif
    }
    void call_kernel() { _kernel.call(_arguments); }
    void finish() noexcept {
        _current->finished = true;
        _progress = true;
        BlockState& block = *_current->block;
        --block.running;
        open_barrier(block);
        leave(true);
    }
    void barrier() noexcept {
        BlockState& block = *_current->block;
        ++block.waiting;
        _current->waits_for_phase = block.phase + 1;
        _progress = true;
        open_barrier(block);
        if (block.phase < _current->waits_for_phase) {
            leave(false);
        }
    }
    void pause() noexcept { leave(false); }

    [[nodiscard]] const Fiber& current() const noexcept { return *_current; }
    [[nodiscard]] const Launch& launch() const noexcept { return _launch; }

  private:
    static void enter() {
        Scheduler& self = *active;
        self.entered();
        self.call_kernel();
        self.finish();
    }

    static void open_barrier(BlockState& block) noexcept {
        if (block.waiting != 0 && block.waiting == block.running) {
            block.waiting = 0;
            ++block.phase;
        }
    }

    void start_block(std::uint64_t number) {
        auto block = std::make_unique<BlockState>();
        block->index = {static_cast<unsigned>(number % _launch.grid.x),
                        static_cast<unsigned>(number / _launch.grid.x % _launch.grid.y),
                        static_cast<unsigned>(number / _launch.grid.x / _launch.grid.y)};
        block->fibers = block->running = _launch.block.x * _launch.block.y * _launch.block.z;
        if (_launch.shared_bytes != 0) {
            block->dynamic = SharedMemory::make(_launch.shared_bytes, 16);
        }
#if defined(__SANITIZE_THREAD__)
        while (block->tsan == nullptr && !spare_tsan_fibers.empty()) {
            block->tsan = std::move(spare_tsan_fibers.back());
            spare_tsan_fibers.pop_back();
            if (!block->tsan->serves(block->running)) {
                block->tsan.reset();
            }
        }
        if (block->tsan == nullptr) {
            block->tsan = std::make_unique<TsanFiber>();
            static_cast<void>(block->tsan->serves(block->running));
        }
#endif
        BlockState* const state = block.get();
        _blocks.emplace(state, std::move(block));
        for (unsigned z = 0; z < _launch.block.z; ++z) {
            for (unsigned y = 0; y < _launch.block.y; ++y) {
                for (unsigned x = 0; x < _launch.block.x; ++x) {
                    start_fiber(*state, {x, y, z});
                }
            }
        }
    }

    void start_fiber(BlockState& block, Index3 thread) {
        auto fiber = std::make_unique<Fiber>();
        fiber->block = &block;
        fiber->thread = thread;
        if (_stacks.empty()) {
            fiber->stack = std::make_unique<Stack>();
        } else {
            fiber->stack = std::move(_stacks.back());
            _stacks.pop_back();
        }
        fiber->position.start(fiber->stack->base(), kStackBytes, &Scheduler::enter);
        resume(*fiber);
        if (!retire(fiber)) {
            _fibers.push_back(std::move(fiber));
        }
    }

    /// Lets each fiber that can run do so once; false when none got anywhere.
    bool round() {
        _progress = false;
        _paused.clear();
        std::size_t kept = 0;
        for (std::size_t position = 0; position < _fibers.size(); ++position) {
            std::unique_ptr<Fiber>& fiber = _fibers[position];
            if (!fiber->finished && fiber->block->phase >= fiber->waits_for_phase) {
                resume(*fiber);
                _paused.push_back(fiber.get());
            }
            if (!retire(fiber)) {
                if (kept != position) {
                    _fibers[kept] = std::move(fiber);
                }
                ++kept;
            }
        }
        _fibers.resize(kept);
        return _progress;
    }

    /// The same after a round in which none got anywhere. Those at barriers cannot yet.
    bool look_again() {
        for (Fiber* const fiber : _paused) {
            resume(*fiber);
            if (_progress) {
                break;
            }
        }
        return _progress;
    }

    /// Takes a finished fiber apart.
    bool retire(std::unique_ptr<Fiber>& fiber) {
        if (!fiber->finished) {
            return false;
        }
        _stacks.push_back(std::move(fiber->stack));
        if (--fiber->block->fibers == 0) {
#if defined(__SANITIZE_THREAD__)
            if (spare_tsan_fibers.size() < kSpareTsanFibers) {
                spare_tsan_fibers.push_back(std::move(fiber->block->tsan));
            }
#endif
            _blocks.erase(fiber->block);
        }
        fiber.reset();
        return true;
    }

    void resume(Fiber& fiber) noexcept {
        _current = &fiber;
        Scheduler* const outer = active;
        active = this;
#if defined(__SANITIZE_ADDRESS__)
        void* fake_stack = nullptr;
        __sanitizer_start_switch_fiber(&fake_stack, fiber.stack->base(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
        _host_tsan = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(fiber.block->tsan->get(), 0);
#endif
        Position::go(_host, fiber.position);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
        active = outer;
        _current = nullptr;
    }

    /// Back to resume(), from inside the current fiber.
    void leave([[maybe_unused]] bool for_ever) noexcept {
        Fiber& fiber = *_current;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(for_ever ? nullptr : &fiber.fake_stack, _host_stack, _host_stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
        __tsan_switch_to_fiber(_host_tsan, 0);
#endif
        Position::go(fiber.position, _host);
        entered();
    }

    const kernels::host::Kernel& _kernel;
    const Launch& _launch;
    void** const _arguments;
    Position _host;
    Fiber* _current = nullptr;
    bool _progress = false;
    std::vector<std::unique_ptr<Fiber>> _fibers;
    std::vector<Fiber*> _paused;  ///< that ran in the last round
    std::vector<std::unique_ptr<Stack>> _stacks;
    std::unordered_map<const BlockState*, std::unique_ptr<BlockState>> _blocks;
#if defined(__SANITIZE_ADDRESS__)
    const void* _host_stack = nullptr;
    std::size_t _host_stack_size = 0;
#endif
#if defined(__SANITIZE_THREAD__)
    void* _host_tsan = nullptr;
#endif

    friend void* shared_of_current(const void* tag, std::size_t bytes, std::size_t alignment);
};

void* shared_of_current(const void* tag, std::size_t bytes, std::size_t alignment) {
    SharedMemory::Pointer& memory = active->_current->block->shared[tag];
    if (!memory) {
        memory = SharedMemory::make(bytes, alignment);
    }
    return memory.get();
}

}  // namespace

void run_kernel(const kernels::host::Kernel& kernel, const Launch& launch, void** arguments) {
    Scheduler(kernel, launch, arguments).run();
}

}  // namespace awaken::emulator

namespace awaken::kernels::host {

using emulator::active;

Index3 current_thread_index() noexcept {
    return active->current().thread;
}
Index3 current_block_index() noexcept {
    return active->current().block->index;
}
Index3 current_block_size() noexcept {
    return active->launch().block;
}
Index3 current_grid_size() noexcept {
    return active->launch().grid;
}
void barrier() noexcept {
    active->barrier();
}
void pause() noexcept {
    active->pause();
}
void* shared_memory(const void* tag, std::size_t bytes, std::size_t alignment) {
    return emulator::shared_of_current(tag, bytes, alignment);
}
void* dynamic_shared_memory() noexcept {
    return active->current().block->dynamic.get();
}

}  // namespace awaken::kernels::host
