// SPDX-License-Identifier: Apache-2.0
#include "blas/library.h"

#include <algorithm>
#include <atomic>

#include "runtime_state.h"

namespace awaken::emulator::blas {
namespace {

struct Handle {
    explicit Handle(Context& context_) : context(context_) {}

    Context& context;
    std::atomic<void*> stream{nullptr};
    std::atomic<int> math_mode{0};
};

Registry<Handle>& handles() {
    // Never destroyed, as the core: programs destroy handles in exit handlers.
    static auto* const all = new Registry<Handle>;
    return *all;
}

/// Nothing may be thrown through a C interface.
template <typename Body>
Status guard(const Body& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return Status::alloc_failed;
    } catch (...) {
        return Status::internal_error;
    }
}

template <typename Body>
Status with_handle(void* handle, const Body& body) noexcept {
    return guard([&] {
        const std::shared_ptr<Handle> found = handles().find(handle);
        return found ? body(*found) : Status::not_initialized;
    });
}

/// Bytes from the first to the last element of a matrix; false where they cannot be counted.
template <typename Value>
bool extent_of(std::int64_t rows, std::int64_t columns, std::int64_t leading, std::size_t& bytes) noexcept {
    std::int64_t elements = 0;
    return !__builtin_mul_overflow(columns - 1, leading, &elements) &&
           !__builtin_add_overflow(elements, rows, &elements) &&
           !__builtin_mul_overflow(static_cast<std::size_t>(elements), sizeof(Value), &bytes);
}

/// Whether kernels of the device can work on the matrix, which is not empty.
template <typename Value>
bool reachable(const Context& context, const Value* data, std::int64_t rows, std::int64_t columns,
               std::int64_t leading) {
    std::size_t bytes = 0;
    if (!extent_of<Value>(rows, columns, leading, bytes)) {
        return false;
    }
    const std::shared_ptr<Allocation> allocation = core().memory().find(number(data));
    if (allocation == nullptr || !core().memory().reachable(*allocation, number(data), bytes, context.device)) {
        return false;
    }
    return !allocation->on_device() || allocation->device == context.device;
}

template <typename Value>
Value* accessible(Value* data) noexcept {
    return reinterpret_cast<Value*>(core().memory().accessible(number(data)));
}

}  // namespace

Status create(Vendor vendor, void** handle) noexcept {
    return guard([&] {
        if (handle == nullptr) {
            return Status::invalid_value;
        }
        *handle = nullptr;
        if (core().availability(vendor) != Error::success) {
            return Status::not_initialized;
        }
        *handle = handles().add(std::make_shared<Handle>(runtime_context()));
        return Status::success;
    });
}

Status destroy(void* handle) noexcept {
    return guard([&] {
        const std::shared_ptr<Handle> removed = handles().remove(handle);
        if (removed == nullptr) {
            return Status::not_initialized;
        }
        core().synchronize_device(removed->context.device);
        return Status::success;
    });
}

Status set_stream(void* handle, void* stream) noexcept {
    return with_handle(handle, [&](Handle& found) {
        found.stream = stream;
        return Status::success;
    });
}

Status get_stream(void* handle, void** stream) noexcept {
    return with_handle(handle, [&](const Handle& found) {
        if (stream == nullptr) {
            return Status::invalid_value;
        }
        *stream = found.stream;
        return Status::success;
    });
}

Status set_math_mode(void* handle, int mode) noexcept {
    return with_handle(handle, [&](Handle& found) {
        found.math_mode = mode;
        return Status::success;
    });
}

Status get_math_mode(void* handle, int* mode) noexcept {
    return with_handle(handle, [&](const Handle& found) {
        if (mode == nullptr) {
            return Status::invalid_value;
        }
        *mode = found.math_mode;
        return Status::success;
    });
}

bool is_handle(const void* handle) noexcept {
    return handles().find(handle) != nullptr;
}

template <typename Value>
Status gemm(void* handle, const Arguments<Value>& given) noexcept {
    return with_handle(handle, [&](const Handle& found) {
        if (given.m < 0 || given.n < 0 || given.k < 0) {
            return Status::invalid_value;
        }
        const bool a_as_stored = given.a_form == Transpose::none;
        const bool b_as_stored = given.b_form == Transpose::none;
        const std::int64_t rows_a = a_as_stored ? given.m : given.k;
        const std::int64_t rows_b = b_as_stored ? given.k : given.n;
        if (given.leading_a < std::max<std::int64_t>(rows_a, 1) ||
            given.leading_b < std::max<std::int64_t>(rows_b, 1) ||
            given.leading_c < std::max<std::int64_t>(given.m, 1)) {
            return Status::invalid_value;
        }
        if (given.m == 0 || given.n == 0) {
            return Status::success;
        }
        if (given.alpha == nullptr || given.beta == nullptr || given.c == nullptr) {
            return Status::invalid_value;
        }
        Product<Value> product{given.a_form, given.b_form, given.m, given.n,     given.k,
                               *given.alpha, {},           {},      *given.beta, {}};
        if (product.reads_factors() && (given.a == nullptr || given.b == nullptr)) {
            return Status::invalid_value;
        }

        const std::shared_ptr<Stream> stream = core().stream(found.context, found.stream);
        if (stream == nullptr || found.context.sticky != Error::success) {
            return Status::execution_failed;
        }
        if (!reachable(found.context, given.c, given.m, given.n, given.leading_c)) {
            return Status::execution_failed;
        }
        if (product.reads_factors() &&
            (!reachable(found.context, given.a, rows_a, a_as_stored ? given.k : given.m, given.leading_a) ||
             !reachable(found.context, given.b, rows_b, b_as_stored ? given.n : given.k, given.leading_b))) {
            return Status::execution_failed;
        }
        product.a = {accessible(given.a), given.leading_a};
        product.b = {accessible(given.b), given.leading_b};
        product.c = {accessible(given.c), given.leading_c};
        found.context.enter();
        stream->submit([product, &context = found.context, fails = core().kernel_fails()] {
            if (fails) {
                context.sticky = Error::launch_failed;
            } else {
                multiply(product);
            }
        });
        return Status::success;
    });
}

template Status gemm(void*, const Arguments<float>&) noexcept;
template Status gemm(void*, const Arguments<double>&) noexcept;
template Status gemm(void*, const Arguments<Complex<float>>&) noexcept;
template Status gemm(void*, const Arguments<Complex<double>>&) noexcept;

}  // namespace awaken::emulator::blas
