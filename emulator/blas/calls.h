// SPDX-License-Identifier: Apache-2.0
// What cuBLAS and hipBLAS have alike in their calls. Each says in a struct what differs: its numbers, and which mistake
// it finds first.
#pragma once

#include <algorithm>
#include <array>

#include "blas/library.h"

namespace awaken::emulator::blas {

/// How a vendor writes a status.
struct StatusName {
    Status status;
    int number;
    const char* text;
};

template <typename Api>
[[nodiscard]] int number_of(Status status) noexcept {
    const auto at = std::find_if(Api::statuses.begin(), Api::statuses.end(),
                                 [&](const StatusName& name) { return name.status == status; });
    return at->number;
}

template <typename Api>
[[nodiscard]] const char* text_of(int number, const char* otherwise) noexcept {
    const auto at = std::find_if(Api::statuses.begin(), Api::statuses.end(),
                                 [&](const StatusName& name) { return name.number == number; });
    return at == Api::statuses.end() ? otherwise : at->text;
}

/// The vendors number the operations in this order, from a first number of their own.
template <typename Api>
[[nodiscard]] bool decode(int operation, Transpose& form) noexcept {
    form = static_cast<Transpose>(operation - Api::first_operation);
    return operation >= Api::first_operation && operation <= Api::first_operation + 2;
}

template <typename Api, typename Value>
int gemm(void* handle, int transa, int transb, std::int64_t m, std::int64_t n, std::int64_t k, const Value* alpha,
         const Value* a, std::int64_t lda, const Value* b, std::int64_t ldb, const Value* beta, Value* c,
         std::int64_t ldc) noexcept {
    if (Api::asks_for_handle_first && !is_handle(handle)) {
        return number_of<Api>(Status::not_initialized);
    }
    Arguments<Value> arguments = {{}, {}, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc};
    if (!decode<Api>(transa, arguments.a_form) || !decode<Api>(transb, arguments.b_form)) {
        return number_of<Api>(Status::invalid_enum);
    }
    return number_of<Api>(gemm(handle, arguments));
}

}  // namespace awaken::emulator::blas

/// One form of the product: its name, the type of its sizes, and that of its elements.
#define AWAKEN_EXPORT_GEMM(name, Size, Value)                                                                \
    AWAKEN_EXPORT int name(void* handle, int transa, int transb, Size m, Size n, Size k, const Value* alpha, \
                           const Value* a, Size lda, const Value* b, Size ldb, const Value* beta, Value* c,  \
                           Size ldc) {                                                                       \
        return gemm<Api, Value>(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);       \
    }
