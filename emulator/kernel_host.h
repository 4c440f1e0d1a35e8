// SPDX-License-Identifier: Apache-2.0
// The host side of src/gpu/kernels/portable.h: what a kernel's text means when the emulated driver runs it.
//
// Each thread of a block is a fiber (kernel_scheduler.cpp); all fibers of a launch share one host thread, that of the
// stream. A fiber runs until it returns, meets a barrier or pauses in a waiting loop, so kernels without either cost
// little more than a function call per thread. Memory that the program sees as "device" is mapped without access
// rights; device_pointer adds the constant distance to its readable alias on each dereference.
//
// AWAKEN_KERNEL registers a kernel by name, with the sizes of its parameters; nothing else has to be done to add one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

namespace awaken::kernels::host {

/// First byte and length of the range that holds every device address, and the distance to the readable alias.
/// Set by the memory core before a kernel can run.
struct DeviceRange {
    std::uintptr_t base = 0;
    std::size_t length = 0;
    std::ptrdiff_t distance = 0;
};
extern DeviceRange device_range;

/// Translates what a program calls an address to what the host may touch.
[[nodiscard]] inline std::uintptr_t accessible(std::uintptr_t address) noexcept {
    return address - device_range.base < device_range.length
               ? address + static_cast<std::uintptr_t>(device_range.distance)
               : address;
}

/// Position of the running fiber.
[[nodiscard]] Index3 current_thread_index() noexcept;
[[nodiscard]] Index3 current_block_index() noexcept;
[[nodiscard]] Index3 current_block_size() noexcept;
[[nodiscard]] Index3 current_grid_size() noexcept;
void barrier() noexcept;
void pause() noexcept;
/// Memory of the running block that belongs to the declaration `tag`; zeroed at first use.
[[nodiscard]] void* shared_memory(const void* tag, std::size_t bytes, std::size_t alignment);
[[nodiscard]] void* dynamic_shared_memory() noexcept;

/// A kernel of the registry.
struct Kernel {
    const char* name = nullptr;
    void (*call)(void** arguments) = nullptr;  ///< runs one thread of it
    const std::size_t* parameter_sizes = nullptr;
    const std::size_t* parameter_alignments = nullptr;
    const bool* parameter_is_pointer = nullptr;  ///< a plain one, as kernels of programs have
    std::size_t parameter_count = 0;
};

void register_kernel(const Kernel& kernel);

template <auto Function>
struct Caller;

template <typename... Parameters, void (*Function)(Parameters...)>
struct Caller<Function> {
    static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel parameters are plain bytes");
    static constexpr std::size_t count = sizeof...(Parameters);
    static constexpr std::size_t sizes[count + 1] = {sizeof(Parameters)..., 0};
    static constexpr std::size_t alignments[count + 1] = {alignof(Parameters)..., 0};
    static constexpr bool pointers[count + 1] = {std::is_pointer_v<Parameters>..., false};

    static void call(void** arguments) { call_with(arguments, std::make_index_sequence<count>{}); }

  private:
    template <std::size_t... Position>
    static void call_with([[maybe_unused]] void** arguments, std::index_sequence<Position...>) {
        Function(value<std::remove_const_t<Parameters>>(arguments[Position])...);
    }

    /// An argument. A kernel of a program's own (hip_kernel_host.h) has plain pointers for parameters.
    template <typename Parameter>
    static Parameter value(const void* argument) noexcept {
        const Parameter passed = *static_cast<const Parameter*>(argument);
        if constexpr (std::is_pointer_v<Parameter>) {
            return reinterpret_cast<Parameter>(accessible(reinterpret_cast<std::uintptr_t>(passed)));
        } else {
            return passed;
        }
    }
};

template <auto Function>
struct Registration {
    explicit Registration(const char* name) {
        using Call = Caller<Function>;
        register_kernel({name, &Call::call, Call::sizes, Call::alignments, Call::pointers, Call::count});
    }
};

}  // namespace awaken::kernels::host

#define AWAKEN_KERNEL(name, ...)                                                          \
    inline void name(__VA_ARGS__);                                                        \
    inline const ::awaken::kernels::host::Registration<&name> name##_registration{#name}; \
    inline void name(__VA_ARGS__)
#define AWAKEN_DEVICE inline
#define AWAKEN_SHARED(type, name, count) \
    static const char name##_tag = 0;    \
    type* const name =                   \
        static_cast<type*>(::awaken::kernels::host::shared_memory(&name##_tag, sizeof(type) * (count), alignof(type)))
#define AWAKEN_DYNAMIC_SHARED(type, name) \
    type* const name = static_cast<type*>(::awaken::kernels::host::dynamic_shared_memory())

namespace awaken::kernels {

/// A pointer as the program and the GPU know it; 8 bytes, as a plain pointer.
template <typename T>
class device_pointer {
  public:
    device_pointer() = default;
    constexpr device_pointer(std::nullptr_t) noexcept {}
    explicit device_pointer(u64 number) noexcept : _address(static_cast<std::uintptr_t>(number)) {}
    /// device_pointer<T> to device_pointer<const T>, as with plain pointers.
    template <typename Other>
        requires(!std::is_same_v<T, Other> && std::is_convertible_v<Other*, T*>)
    device_pointer(device_pointer<Other> other) noexcept : _address(other.number()) {}

    [[nodiscard]] std::uintptr_t number() const noexcept { return _address; }
    [[nodiscard]] T* get() const noexcept { return reinterpret_cast<T*>(host::accessible(_address)); }

    T& operator*() const noexcept { return *get(); }
    T* operator->() const noexcept { return get(); }
    template <typename Integer>
        requires std::is_integral_v<Integer>
    T& operator[](Integer index) const noexcept {
        return *(*this + index).get();
    }
    explicit operator bool() const noexcept { return _address != 0; }

    template <typename Integer>
        requires std::is_integral_v<Integer>
    device_pointer operator+(Integer count) const noexcept {
        return device_pointer(static_cast<u64>(_address + static_cast<std::uintptr_t>(count) * sizeof(T)));
    }
    template <typename Integer>
        requires std::is_integral_v<Integer>
    device_pointer operator-(Integer count) const noexcept {
        return device_pointer(static_cast<u64>(_address - static_cast<std::uintptr_t>(count) * sizeof(T)));
    }
    i64 operator-(device_pointer other) const noexcept {
        return static_cast<i64>(_address - other._address) / static_cast<i64>(sizeof(T));
    }
    template <typename Integer>
        requires std::is_integral_v<Integer>
    device_pointer& operator+=(Integer count) noexcept {
        return *this = *this + count;
    }
    template <typename Integer>
        requires std::is_integral_v<Integer>
    device_pointer& operator-=(Integer count) noexcept {
        return *this = *this - count;
    }
    device_pointer& operator++() noexcept { return *this += 1; }
    friend bool operator==(device_pointer, device_pointer) = default;
    friend auto operator<=>(device_pointer, device_pointer) = default;

  private:
    std::uintptr_t _address = 0;
};

template <typename To, typename From>
AWAKEN_DEVICE device_pointer<To> pointer_cast(device_pointer<From> pointer) noexcept {
    return device_pointer<To>(static_cast<u64>(pointer.number()));
}
template <typename T>
AWAKEN_DEVICE u64 address(device_pointer<T> pointer) noexcept {
    return pointer.number();
}

AWAKEN_DEVICE Index3 thread_index() noexcept {
    return host::current_thread_index();
}
AWAKEN_DEVICE Index3 block_index() noexcept {
    return host::current_block_index();
}
AWAKEN_DEVICE Index3 block_size() noexcept {
    return host::current_block_size();
}
AWAKEN_DEVICE Index3 grid_size() noexcept {
    return host::current_grid_size();
}
AWAKEN_DEVICE void block_barrier() noexcept {
    host::barrier();
}
AWAKEN_DEVICE void block_barrier_before_fence() noexcept {
    host::barrier();
}
AWAKEN_DEVICE void spin_pause() noexcept {
    host::pause();
}
AWAKEN_DEVICE void device_fence() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
AWAKEN_DEVICE void system_fence() noexcept {
    device_fence();
}

template <typename T>
AWAKEN_DEVICE std::remove_const_t<T> load_acquire(device_pointer<T> pointer) noexcept {
    return __atomic_load_n(pointer.get(), __ATOMIC_ACQUIRE);
}
template <typename T>
AWAKEN_DEVICE void store_release(device_pointer<T> pointer, std::type_identity_t<T> value) noexcept {
    __atomic_store_n(pointer.get(), value, __ATOMIC_RELEASE);
}
template <typename T>
AWAKEN_DEVICE void store_as_well(device_pointer<T> pointer, std::type_identity_t<T> value) noexcept {
    store_release(pointer, value);
}
template <typename T>
AWAKEN_DEVICE T atomic_add(device_pointer<T> pointer, std::type_identity_t<T> value) noexcept {
    if constexpr (std::is_integral_v<T>) {
        return __atomic_fetch_add(pointer.get(), value, __ATOMIC_SEQ_CST);
    } else {
        return std::atomic_ref<T>(*pointer).fetch_add(value);
    }
}
template <typename T>
AWAKEN_DEVICE T compare_exchange(device_pointer<T> pointer, std::type_identity_t<T> expected,
                                 std::type_identity_t<T> desired) noexcept {
    __atomic_compare_exchange_n(pointer.get(), &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

}  // namespace awaken::kernels
