// SPDX-License-Identifier: Apache-2.0
#include "core/memory_operations.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <type_traits>

#include "core/core.h"

namespace awaken::emulator {
namespace {

/// Between two looks at memory. Yields at first, as kernels do; streams that wait for long leave the processor to those
/// that have work.
class Pause {
  public:
    void take() {
        if (_yields != 0) {
            --_yields;
            sched_yield();
            return;
        }
        constexpr std::chrono::microseconds kLongest{200};
        std::this_thread::sleep_for(_time);
        _time = std::min(2 * _time, kLongest);
    }

  private:
    unsigned _yields = 100;
    std::chrono::microseconds _time{5};
};

template <typename Word>
std::atomic_ref<Word> word_at(const std::uintptr_t address) {
    return std::atomic_ref<Word>(*reinterpret_cast<Word*>(core().memory().accessible(address)));
}

template <typename Word>
bool is_met(const MemoryOperation& wait) {
    const Word found = word_at<Word>(wait.address).load(std::memory_order_acquire);
    const auto value = static_cast<Word>(wait.value);
    const auto mask = static_cast<Word>(wait.mask);
    switch (*wait.condition) {
        case Condition::cyclic_not_less:
            return static_cast<std::make_signed_t<Word>>(static_cast<Word>(found - value)) >= 0;
        case Condition::not_less:
            return (found & mask) >= value;
        case Condition::equal:
            return (found & mask) == value;
        case Condition::common_one:
            return (found & mask & value) != 0;
        case Condition::common_zero:
            return (~(found | value) & mask) != 0;
    }
    return false;
}

void write_value(const MemoryOperation& operation) {
    if (operation.bytes == sizeof(std::uint64_t)) {
        word_at<std::uint64_t>(operation.address).store(operation.value, std::memory_order_release);
    } else {
        word_at<std::uint32_t>(operation.address)
            .store(static_cast<std::uint32_t>(operation.value), std::memory_order_release);
    }
}

/// False when the context is being destroyed before the value has come.
bool wait_for_value(const MemoryOperation& operation, Context& context) {
    const auto met = operation.bytes == sizeof(std::uint64_t) ? &is_met<std::uint64_t> : &is_met<std::uint32_t>;
    Pause pause;
    while (!met(operation)) {
        if (context.ending) {
            context.gave_up = true;
            return false;
        }
        pause.take();
    }
    return true;
}

void do_in_order(const std::vector<MemoryOperation>& operations, Context& context) {
    for (const MemoryOperation& operation : operations) {
        if (!operation.condition) {
            write_value(operation);
        } else if (!wait_for_value(operation, context)) {
            return;
        }
    }
}

bool is_reached(const MemoryOperation& operation, const Context& context) {
    const Memory& memory = core().memory();
    const std::shared_ptr<Allocation> allocation = memory.find(operation.address);
    if (!allocation || operation.address % operation.bytes != 0) {
        return false;
    }
    // AMD's runtime takes managed memory as any other.
    if (allocation->kind == MemoryKind::managed && core().configuration().vendor == Vendor::cuda) {
        return false;
    }
    return memory.reachable(*allocation, operation.address, operation.bytes, context.device);
}

}  // namespace

std::optional<Condition> condition_of(const unsigned number) noexcept {
    switch (number) {
        case 0:
            return core().configuration().vendor == Vendor::cuda ? Condition::cyclic_not_less : Condition::not_less;
        case 1:
            return Condition::equal;
        case 2:
            return Condition::common_one;
        case 3:
            return Condition::common_zero;
        default:
            return std::nullopt;
    }
}

Error operate_on_memory(Stream& stream, std::vector<MemoryOperation> operations) {
    Context& context = stream.context();
    if (const Error sticky = context.sticky; sticky != Error::success) {
        return sticky;
    }
    if (!std::all_of(operations.begin(), operations.end(),
                     [&](const MemoryOperation& operation) { return is_reached(operation, context); })) {
        return Error::invalid_value;
    }
    const bool waits = std::any_of(operations.begin(), operations.end(),
                                   [](const MemoryOperation& operation) { return operation.condition.has_value(); });
    Work work = [operations = std::move(operations), &context] { do_in_order(operations, context); };
    if (waits) {
        stream.submit_memory_wait(std::move(work));
    } else {
        stream.submit(std::move(work));
    }
    return Error::success;
}

}  // namespace awaken::emulator
