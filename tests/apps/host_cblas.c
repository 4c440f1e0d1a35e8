// SPDX-License-Identifier: Apache-2.0
// A BLAS of the host with the C interface, as far as products go, to see that it is found and used. Compiled as
// libopenblas. Each call is told on stderr once a precision. WITHOUT_PRODUCTS leaves all of it out, ZERO_SINGLE makes
// products in single precision of real numbers nothing but zeros.
#include <complex.h>
#include <stdio.h>

enum { column_major = 102, none = 111, transposed = 112, conjugated = 113 };

#ifndef WITHOUT_PRODUCTS

static int tell(const char* name, int order, int a_form) {
    static const char* told = NULL;
    if (told != name) {
        fprintf(stderr, "<%s>\n", name);
    }
    told = name;
    return order == column_major && a_form == none;
}

#define GEMM(name, Value, Scalar, form, factor, VALUE_OF)                                                           \
    void name(int order, int a_form, int b_form, int m, int n, int k, Scalar alpha, const Value* a, int lda,        \
              const Value* b, int ldb, Scalar beta, Value* c, int ldc) {                                            \
        if (!tell(#name, order, a_form) || b_form != (form) || VALUE_OF(alpha) != 1 || VALUE_OF(beta) != 0) return; \
        for (int j = 0; j < n; ++j) {                                                                               \
            for (int i = 0; i < m; ++i) {                                                                           \
                Value sum = 0;                                                                                      \
                for (int l = 0; l < k; ++l)                                                                         \
                    sum += a[i + (long)l * lda] * factor(b[j + (long)l * ldb]);                                     \
                c[i + (long)j * ldc] = sum;                                                                         \
            }                                                                                                       \
        }                                                                                                           \
    }

#define ITSELF(x) (x)
#ifdef ZERO_SINGLE
#define SINGLE(x) (0 * (x))
#else
#define SINGLE(x) (x)
#endif
#define FLOAT_AT(x) (*(const float complex*)(x))
#define DOUBLE_AT(x) (*(const double complex*)(x))

GEMM(cblas_sgemm, float, float, transposed, SINGLE, ITSELF)
GEMM(cblas_dgemm, double, double, transposed, ITSELF, ITSELF)
GEMM(cblas_cgemm, float complex, const void*, conjugated, conjf, FLOAT_AT)
GEMM(cblas_zgemm, double complex, const void*, conjugated, conj, DOUBLE_AT)

#endif
