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

// The arguments that all forms share, and their names in the same order.
#define GEMM_PARAMETERS(Size, Value)                                                                            \
    void *handle, int transa, int transb, Size m, Size n, Size k, const Value *alpha, const Value *a, Size lda, \
        const Value *b, Size ldb, const Value *beta, Value *c, Size ldc
#define GEMM_ARGUMENTS handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc

template <typename Api, typename Value>
int gemm(GEMM_PARAMETERS(std::int64_t, Value)) noexcept {
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
