// SPDX-License-Identifier: Apache-2.0
// What is said of a series of times.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace awaken::bench {

struct Interval {
    double low = 0;
    double high = 0;
};

struct Summary {
    std::size_t count = 0;
    double mean = 0;
    double minimum = 0;
    double maximum = 0;
    double median = 0;
    Interval median_95;  ///< nonparametric: order statistics of the binomial distribution; the range below 6 samples
    double p50 = 0, p90 = 0, p99 = 0;
};

/// Values may come in any order. All of the answer is 0 when there are none.
[[nodiscard]] Summary summarize(std::span<const double> values);

/// The percentile that -z prints, with OMB's rank: p % of the number of values, rounded down, and at least 1. 0 when
/// there are none.
[[nodiscard]] double tail_percentile(std::vector<double> values, int p);

/// Ratio of the medians of `values` over `reference`, with a 95 % interval: that of the median of the pairs' ratios
/// (same index, run next to each other) when both have the same number of samples, otherwise by bootstrap with a fixed
/// seed. The interval is widened to hold the ratio where it does not. All is 0 when there are no values or the
/// reference is 0.
struct Ratio {
    double value = 0;
    Interval interval;
};
[[nodiscard]] Ratio ratio_of_medians(std::span<const double> values, std::span<const double> reference);

/// Decides when a measurement has seen enough.
class StoppingCriterion {
  public:
    enum class Reason { running, precise, out_of_time, iterations_done };

    /// Fixed number of iterations, as OMB.
    [[nodiscard]] static StoppingCriterion fixed(std::size_t iterations);
    /// Until the median's interval is within +-`precision` of the median (relative), or `time_limit_s` is used up.
    [[nodiscard]] static StoppingCriterion adaptive(double precision, double time_limit_s, std::size_t minimum_samples);

    [[nodiscard]] Reason decide(std::span<const double> samples, double elapsed_s) const;

  private:
    std::size_t _iterations = 0;
    double _precision = 0;
    double _time_limit_s = 0;
    std::size_t _minimum_samples = 0;
};

[[nodiscard]] const char* to_string(StoppingCriterion::Reason reason) noexcept;

}  // namespace awaken::bench
