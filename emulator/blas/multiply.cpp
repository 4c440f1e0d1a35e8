// SPDX-License-Identifier: Apache-2.0
#include "blas/multiply.h"

#include <algorithm>
#include <vector>

namespace awaken::emulator::blas {
namespace {

// A panel of op(A) and a few columns of C stay in the caches of any CPU.
constexpr std::int64_t kPanelRows = 256;
constexpr std::int64_t kPanelDepth = 128;

float conjugate(float value) noexcept {
    return value;
}
double conjugate(double value) noexcept {
    return value;
}
template <typename Real>
Complex<Real> conjugate(Complex<Real> value) noexcept {
    return {value.re, -value.im};
}

/// Element (row, column) of op(matrix).
template <typename Value>
Value element(const Matrix<const Value>& matrix, Transpose form, std::int64_t row, std::int64_t column) noexcept {
    if (form == Transpose::none) {
        return matrix.data[row + column * matrix.leading];
    }
    const Value value = matrix.data[column + row * matrix.leading];
    return form == Transpose::conjugate ? conjugate(value) : value;
}

/// C = beta C.
template <typename Value>
void scale(const Product<Value>& product) {
    for (std::int64_t column = 0; column < product.n; ++column) {
        Value* const c = product.c.data + column * product.c.leading;
        for (std::int64_t row = 0; row < product.m; ++row) {
            c[row] = product.reads_result() ? product.beta * c[row] : Value{};
        }
    }
}

}  // namespace

template <typename Value>
void multiply(const Product<Value>& product) {
    scale(product);
    if (!product.reads_factors()) {
        return;
    }
    std::vector<Value> panel(static_cast<std::size_t>(kPanelRows * kPanelDepth));
    for (std::int64_t first_row = 0; first_row < product.m; first_row += kPanelRows) {
        const std::int64_t rows = std::min(kPanelRows, product.m - first_row);
        for (std::int64_t first = 0; first < product.k; first += kPanelDepth) {
            const std::int64_t depth = std::min(kPanelDepth, product.k - first);
            for (std::int64_t at = 0; at < depth; ++at) {
                Value* const packed = panel.data() + at * kPanelRows;
                for (std::int64_t row = 0; row < rows; ++row) {
                    packed[row] = element(product.a, product.a_form, first_row + row, first + at);
                }
            }
            for (std::int64_t column = 0; column < product.n; ++column) {
                Value* const c = product.c.data + first_row + column * product.c.leading;
                for (std::int64_t at = 0; at < depth; ++at) {
                    const Value factor = product.alpha * element(product.b, product.b_form, first + at, column);
                    const Value* const packed = panel.data() + at * kPanelRows;
                    for (std::int64_t row = 0; row < rows; ++row) {
                        c[row] = c[row] + packed[row] * factor;
                    }
                }
            }
        }
    }
}

template void multiply(const Product<float>&);
template void multiply(const Product<double>&);
template void multiply(const Product<Complex<float>>&);
template void multiply(const Product<Complex<double>>&);

}  // namespace awaken::emulator::blas
