// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the emulated BLAS: C = alpha op(A) op(B) + beta C on memory that the host can read.
#pragma once

#include <cstdint>

namespace awaken::emulator::blas {

/// A complex number as BLAS stores it.
template <typename Real>
struct Complex {
    Real re = 0;
    Real im = 0;

    friend Complex operator+(Complex a, Complex b) noexcept { return {a.re + b.re, a.im + b.im}; }
    friend Complex operator*(Complex a, Complex b) noexcept {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
    friend bool operator==(Complex a, Complex b) noexcept { return a.re == b.re && a.im == b.im; }
};

/// op(): the matrix itself, its transpose, or its conjugate transpose.
enum class Transpose : std::uint8_t { none, transpose, conjugate };

/// A matrix in column-major order; `leading` elements from one column to the next.
template <typename Value>
struct Matrix {
    Value* data = nullptr;
    std::int64_t leading = 0;
};

/// op(A) is m x k, op(B) is k x n, C is m x n.
template <typename Value>
struct Product {
    Transpose a_form = Transpose::none;
    Transpose b_form = Transpose::none;
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    Value alpha{};
    Matrix<const Value> a;
    Matrix<const Value> b;
    Value beta{};
    Matrix<Value> c;

    /// Whether A and B are read: neither is where nothing of them enters the result.
    [[nodiscard]] bool reads_factors() const noexcept { return k > 0 && !(alpha == Value{}); }
    /// Whether C's old values are read. With beta = 0 they may be anything, NaN included.
    [[nodiscard]] bool reads_result() const noexcept { return !(beta == Value{}); }
};

/// Carries it out. Each element's products are added in the order of k, in the precision of Value, wherever the element
/// lies: a block of a product has the bits of the whole.
template <typename Value>
void multiply(const Product<Value>& product);

extern template void multiply(const Product<float>&);
extern template void multiply(const Product<double>&);
extern template void multiply(const Product<Complex<float>>&);
extern template void multiply(const Product<Complex<double>>&);

}  // namespace awaken::emulator::blas
