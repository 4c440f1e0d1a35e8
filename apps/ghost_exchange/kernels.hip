// SPDX-License-Identifier: Apache-2.0
// The kernels. `x` points at the first owned cell unless it is said otherwise, and rows are `stride` cells apart.

/// sum / 5, rounded as a division rounds. A GPU divides in a dozen steps, and the stencil would wait for them: here a
/// product with the nearest number to 1/5 is less than one unit in the last place off, and its remainder, which fma()
/// has exactly, corrects it (Markstein, IBM J. Res. Dev. 34, 1990). Only for ordinary sums.
__device__ double ghost_fifth(double sum) {
    const double quotient = sum * 0.2;
    return fma(fma(-5.0, quotient, sum), 0.2, quotient);
}
/// Whether the remainder cannot be subnormal, and the sum is a number.
__device__ bool ghost_is_ordinary(double sum) {
    return fabs(sum) > 1e-280 && fabs(sum) < 1e300;
}

/// Two neighbouring cells. One access for both needs multiples of 16 bytes, and was no faster.
struct GhostPair {
    double first;
    double second;
};
__device__ GhostPair ghost_load(const double* cell) {
    return GhostPair{cell[0], cell[1]};
}

/// Each cell of a region becomes the average of itself and its four neighbours. The order of the sum is the same
/// everywhere, so that the result has the same bits on every GPU and on the CPU.
extern "C" __global__ void ghost_blur(double* __restrict__ xnew, const double* __restrict__ x, long long stride,
                                      long long ibegin, long long iend, long long jbegin, long long jend) {
    const long long i = ibegin + 2 * ((long long)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= iend) {
        return;
    }
    const bool both = i + 1 < iend;
    // Two columns and a few rows for each thread.
    const int rows = 4;
    const long long step = (long long)gridDim.y * blockDim.y * rows;
    long long j = jbegin + ((long long)blockIdx.y * blockDim.y + threadIdx.y) * rows;
    for (; j < jend; j += step) {
        const double* const cell = x + j * stride + i;
        double* const result = xnew + j * stride + i;
        const int here = jend - j < rows ? (int)(jend - j) : rows;
        // Everything is loaded before anything is computed, so that all loads are under way together. Rows that are
        // not there are the last one that is.
        GhostPair row[rows + 2];
        double left[rows];
        double right[rows];
        for (int r = 0; r < rows + 2; ++r) {
            row[r] = ghost_load(cell + (r <= here ? r - 1 : here) * stride);
        }
        for (int r = 0; r < rows; ++r) {
            left[r] = cell[(r < here ? r : 0) * stride - 1];
            right[r] = both ? cell[(r < here ? r : 0) * stride + 2] : 0;
        }
        GhostPair sum[rows];
        bool all_ordinary = true;
        for (int r = 0; r < rows; ++r) {
            const GhostPair own = row[r + 1];
            sum[r].first = own.first + left[r] + own.second + row[r].first + row[r + 2].first;
            sum[r].second = own.second + own.first + right[r] + row[r].second + row[r + 2].second;
            all_ordinary = all_ordinary && ghost_is_ordinary(sum[r].first) && ghost_is_ordinary(sum[r].second);
        }
        // One branch for all: one for each sum would keep the next from being computed meanwhile.
        for (int r = 0; r < rows; ++r) {
            sum[r].first = all_ordinary ? ghost_fifth(sum[r].first) : sum[r].first;
            sum[r].second = all_ordinary ? ghost_fifth(sum[r].second) : sum[r].second;
        }
        if (!all_ordinary) {
            for (int r = 0; r < rows; ++r) {
                sum[r] = GhostPair{sum[r].first / 5.0, sum[r].second / 5.0};
            }
        }
        for (int r = 0; r < rows; ++r) {
            if (r >= here) {
                continue;  // a constant number of turns, or `sum` could not stay in registers
            }
            result[r * stride] = sum[r].first;
            if (both) {
                result[r * stride + 1] = sum[r].second;
            }
        }
    }
}

/// The same for the cells around a region, cell by cell: there are few of them, and one kernel starts sooner than four.
extern "C" __global__ void ghost_blur_frame(double* __restrict__ xnew, const double* __restrict__ x, long long stride,
                                            long long isize, long long jsize, long long ibegin, long long iend,
                                            long long jbegin, long long jend) {
    const long long row_cells = (jbegin + jsize - jend) * isize;
    const long long width = ibegin + isize - iend;
    const long long cells = row_cells + (jend - jbegin) * width;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < cells; n += step) {
        long long i;
        long long j;
        if (n < row_cells) {
            i = n % isize;
            j = n / isize;
            if (j >= jbegin) {
                j += jend - jbegin;
            }
        } else {
            i = (n - row_cells) % width;
            j = (n - row_cells) / width + jbegin;
            if (i >= ibegin) {
                i += iend - ibegin;
            }
        }
        const long long cell = j * stride + i;
        xnew[cell] = (x[cell] + x[cell - 1] + x[cell + 1] + x[cell - stride] + x[cell + stride]) / 5.0;
    }
}

/// Each halo cell outside the field becomes the nearest owned cell, on the sides that are edges of the field (1) and
/// not borders to a neighbour (0). Rows at the bottom and top go over the whole width: where the block has a neighbour
/// at the left or right they copy its halo as it is.
extern "C" __global__ void ghost_boundary(double* x, long long stride, long long isize, long long jsize,
                                          long long nhalo, int left, int right, int bottom, int top) {
    const long long column_cells = jsize * nhalo;
    const long long row_cells = nhalo * stride;
    const long long columns = (left + right) * column_cells;
    const long long cells = columns + (bottom + top) * row_cells;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < cells; n += step) {
        if (n < columns) {
            const bool at_left = left && n < column_cells;
            const long long m = left && !at_left ? n - column_cells : n;
            const long long j = m / nhalo;
            const long long k = m % nhalo;
            x[j * stride + (at_left ? -1 - k : isize + k)] = x[j * stride + (at_left ? 0 : isize - 1)];
        } else {
            const long long r = n - columns;
            const bool at_bottom = bottom && r < row_cells;
            const long long m = bottom && !at_bottom ? r - row_cells : r;
            const long long k = m / stride;
            const long long i = m % stride - nhalo;
            // Not by way of the corner's neighbours in the halo, which other threads are writing.
            const long long from = left && i < 0 ? 0 : right && i >= isize ? isize - 1 : i;
            x[(at_bottom ? -1 - k : jsize + k) * stride + i] = x[(at_bottom ? 0 : jsize - 1) * stride + from];
        }
    }
}

/// Owned columns go into the buffers, `nhalo` cells of each row after another; a null buffer is left out.
extern "C" __global__ void ghost_pack(double* left, double* right, const double* x, long long stride, long long isize,
                                      long long first_row, long long rows, long long nhalo) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < rows * nhalo; n += step) {
        const double* row = x + (first_row + n / nhalo) * stride;
        if (left) {
            left[n] = row[n % nhalo];
        }
        if (right) {
            right[n] = row[isize - nhalo + n % nhalo];
        }
    }
}

/// The buffers go into the columns of the halo.
extern "C" __global__ void ghost_unpack(double* x, const double* left, const double* right, long long stride,
                                        long long isize, long long first_row, long long rows, long long nhalo) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < rows * nhalo; n += step) {
        double* row = x + (first_row + n / nhalo) * stride;
        if (left) {
            row[n % nhalo - nhalo] = left[n];
        }
        if (right) {
            row[isize + n % nhalo] = right[n];
        }
    }
}

/// Writes a whole array, from its first cell: u[i] * v[j] to the owned cells, or `outside` where u is null; `outside`
/// to the halo.
extern "C" __global__ void ghost_fill(double* array, const double* u, const double* v, long long stride,
                                      long long isize, long long jsize, long long nhalo, double outside) {
    const long long cells = stride * (jsize + 2 * nhalo);
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < cells; n += step) {
        const long long i = n % stride - nhalo;
        const long long j = n / stride - nhalo;
        const bool owned = i >= 0 && i < isize && j >= 0 && j < jsize;
        array[n] = u && owned ? u[i] * v[j] : outside;
    }
}
