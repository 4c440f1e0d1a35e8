// SPDX-License-Identifier: Apache-2.0
// The matrix product on the CPU: by a BLAS that is found when the program runs, or by loops of our own.
#pragma once

#include <string>

#include "machine.h"

namespace xtx {

class HostBlas {
  public:
    /// Looks for a BLAS with the C interface (https://www.netlib.org/blas/#_cblas): OpenBLAS, then what the system's
    /// alternatives are, then the reference.
    HostBlas();

    /// "libopenblas.so.0"; or "own loops (no BLAS: ...)" with the reason.
    [[nodiscard]] const std::string& name() const { return _name; }
    /// Whether sizes may exceed 2^31 - 1: those of the libraries' usual builds may not.
    [[nodiscard]] bool takes_large_sizes() const { return !_gemm.s; }

    void multiply(const Product& product) const;

  private:
    template <class Value, class Scalar>
    using Gemm = void (*)(int order, int a_form, int b_form, int m, int n, int k, Scalar alpha, const Value* a, int lda,
                          const Value* b, int ldb, Scalar beta, Value* c, int ldc);
    /// Null where there is no library.
    struct Gemms {
        Gemm<float, float> s = nullptr;
        Gemm<double, double> d = nullptr;
        Gemm<void, const void*> c = nullptr;
        Gemm<void, const void*> z = nullptr;
    };

    Gemms _gemm;
    std::string _name;
};

/// The same product without any library.
void multiply_by_loops(const Product& product);

}  // namespace xtx
