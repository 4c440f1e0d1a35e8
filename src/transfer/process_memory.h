// SPDX-License-Identifier: Apache-2.0
// Host memory that is recognised without asking the GPU driver.
#pragma once

#include <atomic>
#include <cstdint>

namespace awaken::transfer {

/// The heap that grows by brk, and the main thread's stack. Small buffers mostly lie in one of them, and no GPU runtime
/// allocates there. Registered memory may lie there, but that is host memory. Looking costs a nanosecond; asking the
/// driver costs 100.
class ProcessMemory {
  public:
    /// Reads the bounds of both from /proc/self/maps. Where that cannot be read, it recognises nothing.
    ProcessMemory();

    [[nodiscard]] bool holds(const void* const pointer) const noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        if (address - _heap_begin < _heap_size.load(std::memory_order_relaxed)) {
            return true;
        }
        // The stack grows downwards. The part in use lies between this frame, with a page for the locals around it, and
        // the end of the stack.
        constexpr std::uintptr_t kLocals = 4096;
        const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
        return frame >= _stack_begin && address + kLocals >= frame && address < _stack_end;
    }

    /// The driver said that `pointer` is host memory, so the heap may have grown over it. Asking for the heap's end
    /// each time would be expensive where a transport library hooks sbrk.
    void learn(const void* pointer) noexcept;

  private:
    std::uintptr_t _heap_begin = 0;
    std::atomic<std::uintptr_t> _heap_size{0};
    std::uintptr_t _stack_begin = 0;
    std::uintptr_t _stack_end = 0;
};

}  // namespace awaken::transfer
