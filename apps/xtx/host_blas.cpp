// SPDX-License-Identifier: Apache-2.0
#include "host_blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <complex>
#include <vector>

namespace xtx {

namespace {

// CBLAS's enumerators.
constexpr int column_major = 102;
constexpr int none = 111;
constexpr int transposed = 112;
constexpr int conjugated = 113;

/// One column of C or A as real numbers, so that the compiler need not care for what std::complex does about NaN.
template <class Real>
void add_multiple(Real* c, const Real* a, long long rows, Real factor) {
    for (long long i = 0; i < rows; ++i) {
        c[i] += factor * a[i];
    }
}
template <class Real>
void add_multiple(std::complex<Real>* c, const std::complex<Real>* a, long long rows, std::complex<Real> factor) {
    auto* const out = reinterpret_cast<Real*>(c);
    const auto* const in = reinterpret_cast<const Real*>(a);
    const Real re = factor.real();
    const Real im = factor.imag();
    for (long long i = 0; i < rows; ++i) {
        out[2 * i] += re * in[2 * i] - im * in[2 * i + 1];
        out[2 * i + 1] += re * in[2 * i + 1] + im * in[2 * i];
    }
}

float conjugate(float value) {
    return value;
}
double conjugate(double value) {
    return value;
}
template <class Real>
std::complex<Real> conjugate(std::complex<Real> value) {
    return std::conj(value);
}

/// In tiles of A that stay in the caches.
template <class Value>
void loops(const Product& product) {
    constexpr long long tile_rows = 256;
    constexpr long long tile_depth = 64;
    const auto* const a = static_cast<const Value*>(product.a);
    const auto* const b = static_cast<const Value*>(product.b);
    auto* const c = static_cast<Value*>(product.c);
    for (long long j = 0; j < product.n; ++j) {
        std::fill_n(c + j * product.leading_c, product.m, Value{});
    }
    for (long long row = 0; row < product.m; row += tile_rows) {
        const long long rows = std::min(tile_rows, product.m - row);
        for (long long depth = 0; depth < product.k; depth += tile_depth) {
            const long long end = std::min(depth + tile_depth, product.k);
            for (long long j = 0; j < product.n; ++j) {
                for (long long l = depth; l < end; ++l) {
                    const Value* const column = a + row + l * product.leading;
                    add_multiple(c + row + j * product.leading_c, column, rows, conjugate(b[j + l * product.leading]));
                }
            }
        }
    }
}

}  // namespace

void multiply_by_loops(const Product& product) {
    if (product.is_complex && product.single) {
        return loops<std::complex<float>>(product);
    }
    if (product.is_complex) {
        return loops<std::complex<double>>(product);
    }
    if (product.single) {
        return loops<float>(product);
    }
    loops<double>(product);
}

HostBlas::HostBlas() {
    std::string tried;
    for (const char* soname :
         {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libcblas.so", "libblas.so.3", "libblas.so"}) {
        void* const library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr) {
            Gemms found;
            found.s = reinterpret_cast<decltype(found.s)>(dlsym(library, "cblas_sgemm"));
            found.d = reinterpret_cast<decltype(found.d)>(dlsym(library, "cblas_dgemm"));
            found.c = reinterpret_cast<decltype(found.c)>(dlsym(library, "cblas_cgemm"));
            found.z = reinterpret_cast<decltype(found.z)>(dlsym(library, "cblas_zgemm"));
            if (found.s != nullptr && found.d != nullptr && found.c != nullptr && found.z != nullptr) {
                _gemm = found;
                _name = soname;
                return;
            }
            dlclose(library);
        }
        tried += (tried.empty() ? "" : ", ") + std::string(soname);
    }
    _name = "own loops (no host BLAS with a C interface: looked for " + tried + ")";
}

void HostBlas::multiply(const Product& product) const {
    if (_gemm.s == nullptr) {
        return multiply_by_loops(product);
    }
    const auto m = static_cast<int>(product.m);
    const auto n = static_cast<int>(product.n);
    const auto k = static_cast<int>(product.k);
    const auto leading = static_cast<int>(product.leading);
    const auto leading_c = static_cast<int>(product.leading_c);
    if (product.is_complex) {
        const std::array<double, 2> one = {1, 0};
        const std::array<double, 2> zero = {0, 0};
        const std::array<float, 2> one_f = {1, 0};
        const std::array<float, 2> zero_f = {0, 0};
        const void* const alpha = product.single ? static_cast<const void*>(one_f.data()) : one.data();
        const void* const beta = product.single ? static_cast<const void*>(zero_f.data()) : zero.data();
        (product.single ? _gemm.c : _gemm.z)(column_major, none, conjugated, m, n, k, alpha, product.a, leading,
                                             product.b, leading, beta, product.c, leading_c);
    } else if (product.single) {
        _gemm.s(column_major, none, transposed, m, n, k, 1.0F, static_cast<const float*>(product.a), leading,
                static_cast<const float*>(product.b), leading, 0.0F, static_cast<float*>(product.c), leading_c);
    } else {
        _gemm.d(column_major, none, transposed, m, n, k, 1.0, static_cast<const double*>(product.a), leading,
                static_cast<const double*>(product.b), leading, 0.0, static_cast<double*>(product.c), leading_c);
    }
}

}  // namespace xtx
