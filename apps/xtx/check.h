// SPDX-License-Identifier: Apache-2.0
// Whether S is right: expected elements, how far rounding may move them, and the comparison.
//
// The input that the original has, all entries of absolute value 1/N, makes every element M/N^2, at any size. A random
// input is compared with sums made on the host in extended precision, which takes a while: with all elements where the
// problem is small, or with a few of each block.
//
// The bounds hold for any order of summation. In the worst case a sum of n products x y made in a precision with unit
// roundoff u is off by n u / (1 - n u) times the sum of |x y| (Higham, Accuracy and Stability of Numerical Algorithms,
// chapter 3). In single precision and for many rows that is more than the sum itself, and would let anything pass. So:
//
// - Random input: the roundings of K operations are as good as independent, each at most u times a subtotal, so that
//   their sum is of the order of sqrt(K) u times the subtotals (Higham and Mary, Sharper Probabilistic Backward Error
//   Analysis for Basic Linear Algebra Kernels with Random Data, 2020); eight times that is allowed. Entries are uniform
//   in [-1, 1): a product has the mean square 1/9 and, off the diagonal, the mean 0, so that subtotals are of the order
//   of sqrt(n) / 3; on the diagonal, where squares are summed up, n / 3.
// - Constant input: all roundings may go the same way, so the worst case counts, but no more than half of what one rank
//   contributes: a share that is missing must show.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "input.h"
#include "plan.h"

namespace xtx {

/// How far off the elements were, at most.
struct Difference {
    double error = 0;           ///< absolute
    double share_of_bound = 0;  ///< of what rounding may do

    void take(double other_error, double bound) {
        error = std::max(error, other_error);
        share_of_bound = std::max(share_of_bound, other_error / bound);
    }
};

class Check {
  public:
    /// Largest N, and largest M N^2, for which all elements of a random S are compared.
    static constexpr long long most_vectors = 2048;
    static constexpr double most_work = 0x1p34;

    /// Why not all elements can be compared; empty where they can.
    [[nodiscard]] static std::string refusal(const Problem& problem, Input input) {
        const auto N = static_cast<double>(problem.vectors);
        const bool small = problem.vectors <= most_vectors && static_cast<double>(problem.dofs) * N * N <= most_work;
        if (input == Input::constant || small) {
            return {};
        }
        return "--check all with random input is for small sizes (up to 2048 vectors, and dofs x vectors^2 up to "
               "2^34): "
               "use --check samples, or --input constant";
    }

    Check(const Problem& problem, Input input, int rank, int ranks, bool all)
        : _problem(problem),
          _input(input),
          _rank(rank),
          _all(all),
          _blocks(blocks_of(problem)),
          _X(problem, input, Rows{0, problem.dofs}) {
        find_bounds(ranks);
        if (input == Input::random) {
            all ? sum_up_all() : sum_up_samples();
        }
    }

    /// Compares a few elements of a reduced block, among them its corners.
    void compare_samples(std::size_t k, const void* data) {
        for (const auto& [row, column] : samples(k)) {
            compare(k, data, row, column);
        }
    }

    /// Compares all elements, or a few where that was asked for, and takes the block's bits into the digest.
    void compare_thoroughly(std::size_t k, const void* data) {
        if (_all) {
            for (long long column = 0; column < _blocks[k].width; ++column) {
                for (long long row = 0; row < _blocks[k].height; ++row) {
                    compare(k, data, row, column);
                }
            }
        } else {
            compare_samples(k, data);
        }
        add_to_digest(k, data);
    }

    /// The first wrong element at this rank in words; empty where all were right.
    [[nodiscard]] const std::string& problem() const { return _wrong; }
    /// Of the elements that came as doubles, and of those that came as floats.
    [[nodiscard]] const Difference& doubles() const { return _doubles; }
    [[nodiscard]] const Difference& floats() const { return _floats; }
    /// A number that depends on every bit of every element that was compared thoroughly since the last call.
    [[nodiscard]] std::uint64_t take_digest() { return std::exchange(_digest, 0); }

  private:
    using Sum = std::complex<long double>;

    static constexpr double double_roundoff = 0x1p-53;
    static constexpr double float_roundoff = 0x1p-24;

    /// How far rounding may move an element.
    struct Bounds {
        double doubles = 0;
        double floats = 0;
    };

    /// n u / (1 - n u), infinite where n roundings may lose all digits.
    static double growth(double n, double unit_roundoff) {
        const double product = n * unit_roundoff;
        return product < 1 ? product / (1 - product) : std::numeric_limits<double>::infinity();
    }

    void find_bounds(int ranks) {
        const auto M = static_cast<double>(_problem.dofs);
        const auto N = static_cast<double>(_problem.vectors);
        const auto P = static_cast<double>(ranks);
        const bool is_random = _input == Input::random;
        // Products of the real part, or of the imaginary one; then the additions over ranks, and some for the constant
        // itself, and for its rounding to FP32.
        const double n = M * _problem.parts();
        const double over_ranks = P + 8;
        // Random numbers are below 1.
        const double magnitude = is_random ? n : M / (N * N);
        const auto bound = [&](double operations, double unit_roundoff, double subtotal) {
            const double worst = growth(operations, unit_roundoff) * magnitude;
            if (!is_random) {
                return std::min(worst, magnitude / (2 * P));
            }
            return std::min(worst, 8 * std::sqrt(2 * operations) * unit_roundoff * subtotal);
        };
        const auto bounds = [&](double subtotal) {
            const double in_doubles = bound(n + over_ranks, double_roundoff, subtotal);
            return _problem.precision == Precision::mixed
                       ? Bounds{in_doubles, bound(n + over_ranks, float_roundoff, subtotal)}
                       : Bounds{in_doubles, in_doubles + bound(over_ranks, float_roundoff, subtotal)};
        };
        _bounds = bounds(std::sqrt(n) / 3);
        _diagonal_bounds = bounds(n / 3);
    }

    /// Element (i, j) of X^T conj(X).
    [[nodiscard]] Sum sum_up(long long i, long long j) const {
        Sum sum = 0;
        for (long long row = 0; row < _problem.dofs; ++row) {
            sum += element(row, i) * std::conj(element(row, j));
        }
        return sum;
    }
    [[nodiscard]] Sum element(long long row, long long vector) const {
        const auto parts = static_cast<std::uint64_t>(_problem.parts());
        const std::uint64_t at =
            parts * (static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(_problem.vectors) +
                     static_cast<std::uint64_t>(vector));
        return {_X(at), parts == 2 ? _X(at + 1) : 0};
    }

    void sum_up_all() {
        const auto N = static_cast<std::size_t>(_problem.vectors);
        _sums.resize(N * N);
        std::vector<Sum> line(N);
        for (long long row = 0; row < _problem.dofs; ++row) {
            for (std::size_t i = 0; i < N; ++i) {
                line[i] = element(row, static_cast<long long>(i));
            }
            for (const Block& block : _blocks) {
                for (long long j = block.first; j < block.first + block.width; ++j) {
                    const long double re = line[static_cast<std::size_t>(j)].real();
                    const long double im = line[static_cast<std::size_t>(j)].imag();
                    for (auto i = static_cast<std::size_t>(block.first); i < N; ++i) {
                        const Sum x = line[i];
                        Sum& sum = _sums[i + static_cast<std::size_t>(j) * N];
                        sum = {sum.real() + x.real() * re + x.imag() * im, sum.imag() + x.imag() * re - x.real() * im};
                    }
                }
            }
        }
    }

    void sum_up_samples() {
        for (std::size_t k = 0; k < _blocks.size(); ++k) {
            for (const auto& [row, column] : samples(k)) {
                const long long i = _blocks[k].first + row;
                const long long j = _blocks[k].first + column;
                if (_sampled.count({i, j}) == 0) {
                    _sampled[{i, j}] = sum_up(i, j);
                }
            }
        }
    }

    /// Rows and columns within a block.
    [[nodiscard]] std::array<std::pair<long long, long long>, 8> samples(std::size_t k) const {
        const long long rows = _blocks[k].height;
        const long long columns = _blocks[k].width;
        std::array<std::pair<long long, long long>, 8> chosen = {
            {{0, 0}, {rows - 1, 0}, {0, columns - 1}, {rows - 1, columns - 1}}};
        for (std::size_t at = 4; at < chosen.size(); ++at) {
            const auto place = [&](std::uint64_t number, long long limit) {
                const double share = (random_number(number) + 1) / 2;
                return std::min(static_cast<long long>(share * static_cast<double>(limit)), limit - 1);
            };
            chosen[at] = {place(2 * (8 * k + at), rows), place(2 * (8 * k + at) + 1, columns)};
        }
        return chosen;
    }

    [[nodiscard]] Sum expected(long long i, long long j) const {
        if (_input == Input::constant) {
            const auto N = static_cast<long double>(_problem.vectors);
            return static_cast<long double>(_problem.dofs) / (N * N);
        }
        if (_all) {
            return _sums[static_cast<std::size_t>(i + j * _problem.vectors)];
        }
        return _sampled.at({i, j});
    }

    void compare(std::size_t k, const void* data, long long row, long long column) {
        const Block& block = _blocks[k];
        const Layout layout = layout_of(_problem, block);
        const auto parts = static_cast<std::size_t>(_problem.parts());
        std::array<double, 2> actual = {};
        const bool is_double = !_problem.is_mixed() || row < block.width;
        const long long top = _problem.is_mixed() ? block.width : block.height;
        if (is_double) {
            const auto* const values = static_cast<const double*>(data);
            for (std::size_t part = 0; part < parts; ++part) {
                actual[part] = values[parts * static_cast<std::size_t>(row + column * top) + part];
            }
        } else {
            const void* const floats = static_cast<const unsigned char*>(data) + layout.floats_offset;
            const auto* const values = static_cast<const float*>(floats);
            for (std::size_t part = 0; part < parts; ++part) {
                actual[part] = values[parts * static_cast<std::size_t>(row - top + column * block.rest()) + part];
            }
        }
        const long long i = block.first + row;
        const long long j = block.first + column;
        const Sum right = expected(i, j);
        const Bounds& bounds = i == j ? _diagonal_bounds : _bounds;
        const double bound = is_double ? bounds.doubles : bounds.floats;
        for (std::size_t part = 0; part < parts; ++part) {
            const long double wanted = part == 0 ? right.real() : right.imag();
            const double error = static_cast<double>(std::abs(actual[part] - wanted));
            // A NaN is not within any bound.
            if (!(error <= bound)) {
                if (_wrong.empty()) {
                    describe(i, j, actual[part], wanted, bound, part == 1);
                }
                continue;
            }
            (is_double ? _doubles : _floats).take(error, bound);
        }
    }

    void describe(long long i, long long j, double actual, long double wanted, double bound, bool imaginary) {
        std::array<char, 256> text = {};
        std::snprintf(text.data(), text.size(),
                      "rank %d, %sS(%lld, %lld): %.17g instead of %.17Lg, rounding allows %.2g", _rank,
                      imaginary ? "imaginary part of " : "", i, j, actual, wanted, bound);
        _wrong = text.data();
    }

    void add_to_digest(std::size_t k, const void* data) {
        const Layout layout = layout_of(_problem, _blocks[k]);
        const auto* const bytes = static_cast<const unsigned char*>(data);
        add_numbers(bytes, layout.doubles, sizeof(double));
        add_numbers(bytes + layout.floats_offset, layout.floats, sizeof(float));
    }
    void add_numbers(const unsigned char* bytes, std::size_t count, std::size_t size) {
        for (std::size_t at = 0; at < count; ++at) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, bytes + at * size, size);
            // FNV-1a's step, on words instead of bytes.
            _digest = (_digest ^ bits ^ (bits >> 29)) * 0x100000001B3U;
        }
    }

    Problem _problem;
    Input _input;
    int _rank;
    bool _all;
    std::vector<Block> _blocks;
    Filling _X;  ///< of all rows
    Bounds _bounds;
    Bounds _diagonal_bounds;
    std::vector<Sum> _sums;  ///< N x N, by columns; what is above the blocks' diagonal stays zero
    std::map<std::pair<long long, long long>, Sum> _sampled;
    std::string _wrong;
    Difference _doubles;
    Difference _floats;
    std::uint64_t _digest = 0;
};

}  // namespace xtx
