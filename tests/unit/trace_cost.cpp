// SPDX-License-Identifier: Apache-2.0
// Prints what the trace costs, in nanoseconds per event: medians of batches.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "trace/recorder.h"

namespace {

using awaken::trace::Event;
using awaken::trace::Kind;
using awaken::trace::Recorder;

double median_ns(const std::function<void()>& call) {
    constexpr int kBatches = 101, kCalls = 10'000;
    std::vector<double> means;
    for (int batch = 0; batch < kBatches; ++batch) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kCalls; ++i) {
            call();
        }
        const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
        means.push_back(elapsed.count() / kCalls);
    }
    std::nth_element(means.begin(), means.begin() + kBatches / 2, means.end());
    return means[kBatches / 2];
}

/// As a call of the MPI is traced: two looks at the clock and one event.
void trace_call(awaken::trace::Sink& sink) {
    Event event;
    event.begin_ns = awaken::trace::now_ns();
    event.name = "MPI_Send";
    event.bytes = 8;
    event.end_ns = awaken::trace::now_ns();
    sink.add(event);
}

}  // namespace

int main() {
    awaken::trace::Stretch stretch;
    const auto use_stretch = [&] {
        stretch.begin(Kind::copy, "copy", 8, 0);
        stretch.end();
    };
    const double clock = median_ns([] { static_cast<void>(awaken::trace::now_ns()); });
    const double off = median_ns(use_stretch);
    // Room for all events of a measurement: the cost includes that of new memory.
    Recorder recorder(std::size_t{1} << 30);
    awaken::trace::current_sink.store(&recorder);
    const double call = median_ns([&] { trace_call(recorder); });
    const double work = median_ns(use_stretch);
    const double range = median_ns([&] {
        recorder.push_range("stencil");
        recorder.pop_range();
    });
    std::printf("clock %.1f  off %.1f  call %.1f  copy or kernel %.1f  range %.1f  (ns; %llu of them dropped)\n", clock,
                off, call, work, range, static_cast<unsigned long long>(recorder.dropped()));
    return recorder.dropped() == 0 ? 0 : 1;
}
