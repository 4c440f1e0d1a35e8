// SPDX-License-Identifier: Apache-2.0
// The median and its interval make no assumption about the distribution of times, which is never normal: skewed, with
// several modes, cut off at the left. Sources: Le Boudec, "Performance Evaluation of Computer and Communication
// Systems" (EPFL Press 2010), theorem 2.1 and appendix A, for the interval; Efron and Tibshirani, "An Introduction to
// the Bootstrap" (1993), for ratios of samples that have nothing to do with each other.
#include "engine/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>

namespace awaken::bench {
namespace {

constexpr double kMissed = 0.05;  ///< probability that an interval misses the true value
constexpr double kNormalQuantile = 1.959963984540054;
/// Up to here binomial probabilities are summed; beyond, the normal distribution is as good (the rank differs by at
/// most one), and free.
constexpr std::size_t kExactUpTo = 1000;

/// The rank l, from 1, such that the median of the distribution lies between the l-th smallest and the l-th largest of
/// `count` values with a probability of at least 95 %. 0 when no l does, below 6 values.
std::size_t lower_rank(std::size_t count) {
    const double n = static_cast<double>(count);
    if (count > kExactUpTo) {
        return static_cast<std::size_t>(std::floor(n / 2 - kNormalQuantile / 2 * std::sqrt(n)));
    }
    // P(fewer than l of n values lie below the median) = sum over i < l of C(n, i) / 2^n.
    double below = 0;
    std::size_t rank = 0;
    while (rank < count) {
        const double i = static_cast<double>(rank);
        below += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) - n * std::log(2.0));
        if (below > kMissed / 2) {
            break;
        }
        ++rank;
    }
    return rank;
}

/// Median of values that may be reordered.
double median_of(std::vector<double>& values) {
    const std::size_t count = values.size();
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(count / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (count % 2 == 1) {
        return *middle;
    }
    return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double median_of_sorted(const std::vector<double>& sorted) {
    return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}

/// The interval of the median of values in ascending order.
Interval interval_of_sorted(const std::vector<double>& sorted) {
    const std::size_t rank = std::max<std::size_t>(lower_rank(sorted.size()), 1);
    return {sorted[rank - 1], sorted[sorted.size() - rank]};
}

double nearest_rank(const std::vector<double>& sorted, double p) {
    const double n = static_cast<double>(sorted.size());
    // The subtraction keeps 0.1 * 10 and its like from being rounded up to the next rank.
    const double rank = std::ceil(p / 100 * n - 1e-9);
    return sorted[static_cast<std::size_t>(std::clamp(rank, 1.0, n)) - 1];
}

/// Random numbers that are the same with every standard library: its engines are specified, its distributions are not.
class Random {
  public:
    /// In (0, 1).
    double uniform() { return (static_cast<double>(_engine() >> 11) + 0.5) * 0x1p-53; }

    /// Beta distributed, for a, b >= 1.
    double beta(double a, double b) {
        const double x = gamma(a);
        return x / (x + gamma(b));
    }

  private:
    double normal() {
        constexpr double kTwoPi = 6.283185307179586;
        const double radius = std::sqrt(-2 * std::log(uniform()));
        return radius * std::cos(kTwoPi * uniform());
    }

    /// Gamma distributed for shape >= 1 (Marsaglia and Tsang 2000).
    double gamma(double shape) {
        const double d = shape - 1.0 / 3;
        const double c = 1 / std::sqrt(9 * d);
        for (;;) {
            const double x = normal();
            const double v = std::pow(1 + c * x, 3);
            if (v > 0 && std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
                return d * v;
            }
        }
    }

    std::mt19937_64 _engine{20150901};
};

/// The median of as many values drawn from `sorted` with replacement, without drawing them: the middle ones of n
/// uniform numbers are Beta distributed, and a drawn value is the one at the uniform number's place.
double resampled_median(const std::vector<double>& sorted, Random& random) {
    const std::size_t count = sorted.size();
    const double n = static_cast<double>(count);
    const auto at = [&](double u) { return sorted[std::min(static_cast<std::size_t>(u * n), count - 1)]; };
    const std::size_t middle = (count + 1) / 2;
    const double m = static_cast<double>(middle);
    const double lower = random.beta(m, n + 1 - m);
    if (count % 2 == 1) {
        return at(lower);
    }
    const double upper = lower + (1 - lower) * random.beta(1, n - m);
    return (at(lower) + at(upper)) / 2;
}

Interval bootstrapped_ratio(std::vector<double> values, std::vector<double> reference) {
    constexpr std::size_t kResamples = 2000;
    std::sort(values.begin(), values.end());
    std::sort(reference.begin(), reference.end());
    Random random;
    std::vector<double> ratios(kResamples);
    for (double& ratio : ratios) {
        const double above = resampled_median(values, random);
        ratio = above / resampled_median(reference, random);
    }
    std::sort(ratios.begin(), ratios.end());
    return {nearest_rank(ratios, 100 * kMissed / 2), nearest_rank(ratios, 100 * (1 - kMissed / 2))};
}

}  // namespace

Summary summarize(std::span<const double> values) {
    Summary summary;
    if (values.empty()) {
        return summary;
    }
    std::vector<double> sorted(values.begin(), values.end());
    std::sort(sorted.begin(), sorted.end());
    const std::size_t count = sorted.size();
    summary.count = count;
    summary.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(count);
    summary.minimum = sorted.front();
    summary.maximum = sorted.back();
    summary.median = median_of_sorted(sorted);
    summary.median_95 = interval_of_sorted(sorted);
    summary.p50 = nearest_rank(sorted, 50);
    summary.p90 = nearest_rank(sorted, 90);
    summary.p99 = nearest_rank(sorted, 99);
    return summary;
}

double tail_percentile(std::vector<double> values, const int p) {
    if (values.empty()) {
        return 0;
    }
    const std::size_t rank = std::max<std::size_t>(values.size() * static_cast<std::size_t>(p) / 100, 1);
    const auto place = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(values.begin(), place, values.end());
    return *place;
}

Ratio ratio_of_medians(std::span<const double> values, std::span<const double> reference) {
    Ratio ratio;
    if (values.empty() || reference.empty()) {
        return ratio;
    }
    std::vector<double> above(values.begin(), values.end());
    std::vector<double> below(reference.begin(), reference.end());
    const double divisor = median_of(below);
    if (divisor == 0) {
        return ratio;
    }
    ratio.value = median_of(above) / divisor;

    // A pair shares what the machine was doing at the time, which therefore cancels out of its ratio.
    const bool paired = values.size() == reference.size() &&
                        std::none_of(reference.begin(), reference.end(), [](double value) { return value == 0; });
    if (paired) {
        std::vector<double> ratios(values.size());
        std::transform(values.begin(), values.end(), reference.begin(), ratios.begin(), std::divides<>());
        std::sort(ratios.begin(), ratios.end());
        ratio.interval = interval_of_sorted(ratios);
    } else {
        ratio.interval = bootstrapped_ratio(std::move(above), std::move(below));
    }
    // The median of ratios need not be the ratio of medians; the interval is one for both.
    ratio.interval.low = std::min(ratio.interval.low, ratio.value);
    ratio.interval.high = std::max(ratio.interval.high, ratio.value);
    return ratio;
}

StoppingCriterion StoppingCriterion::fixed(std::size_t iterations) {
    StoppingCriterion criterion;
    criterion._iterations = std::max<std::size_t>(iterations, 1);
    return criterion;
}

StoppingCriterion StoppingCriterion::adaptive(double precision, double time_limit_s, std::size_t minimum_samples) {
    StoppingCriterion criterion;
    criterion._precision = precision;
    criterion._time_limit_s = time_limit_s;
    criterion._minimum_samples = minimum_samples;
    return criterion;
}

StoppingCriterion::Reason StoppingCriterion::decide(std::span<const double> samples, double elapsed_s) const {
    if (_iterations > 0) {
        return samples.size() >= _iterations ? Reason::iterations_done : Reason::running;
    }
    // Below 6 samples there is no interval to judge by.
    constexpr std::size_t kFewest = 6;
    if (samples.size() >= std::max(_minimum_samples, kFewest)) {
        std::vector<double> sorted(samples.begin(), samples.end());
        std::sort(sorted.begin(), sorted.end());
        const Interval interval = interval_of_sorted(sorted);
        const double median = median_of_sorted(sorted);
        if (interval.low >= median * (1 - _precision) && interval.high <= median * (1 + _precision)) {
            return Reason::precise;
        }
    }
    // One sample at least, so that there is something to report.
    return elapsed_s >= _time_limit_s && !samples.empty() ? Reason::out_of_time : Reason::running;
}

const char* to_string(StoppingCriterion::Reason reason) noexcept {
    constexpr const char* kNames[] = {"running", "precise", "out of time", "iterations done"};
    const auto index = static_cast<std::size_t>(reason);
    return index < std::size(kNames) ? kNames[index] : "unknown";
}

}  // namespace awaken::bench
