// SPDX-License-Identifier: Apache-2.0
// The CPU in place of a GPU: a thread works off what a GPU's compute stream would, so that products overlap with
// reductions here too.
#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "host_blas.h"
#include "host_memory.h"
#include "machine.h"
#include "ranges.h"
#include "worker.h"

namespace xtx {

namespace {

class HostMachine : public Machine {
  public:
    std::string title() const override { return _blas.name() + " on the CPU"; }

    std::string refusal(const Problem& problem, long long rows) const override {
        if (_blas.takes_large_sizes() || std::max(problem.vectors, rows) <= INT_MAX) {
            return {};
        }
        return _blas.name() + " takes sizes up to 2147483647: use fewer --vectors, or more ranks";
    }

    void* allocate(std::size_t bytes) override { return std::malloc(std::max<std::size_t>(bytes, 1)); }
    void free(void* memory) override { std::free(memory); }
    void* allocate_on_host(std::size_t bytes) override { return allocate(bytes); }
    void free_on_host(void* memory) override { std::free(memory); }
    std::size_t free_bytes() const override { return free_host_bytes(); }
    bool is_host() const override { return true; }

    void fill(double* X, std::size_t count, const Filling& filling) override {
        _worker.submit([=] {
            for (std::size_t i = 0; i < count; ++i) {
                X[i] = filling(i);
            }
        });
    }
    void narrow(float* target, std::size_t count, const double* source, std::size_t source_count) override {
        _worker.submit([=] {
            for (std::size_t i = 0; i < source_count; ++i) {
                target[i] = static_cast<float>(source[i]);
            }
            std::fill(target + source_count, target + count, 0.0F);
        });
    }
    void multiply(const Product& product) override {
        _worker.submit([this, product] {
            const apps::Range range("gemm");
            _blas.multiply(product);
        });
    }
    void split(const Split& split) override {
        _worker.submit([split] {
            for (std::size_t column = 0; column < split.columns; ++column) {
                const double* const from = split.block + column * split.height;
                std::memcpy(split.diagonal + column * split.top, from, split.top * sizeof(double));
                float* const to = split.rest + column * (split.height - split.top);
                for (std::size_t row = split.top; row < split.height; ++row) {
                    to[row - split.top] = static_cast<float>(from[row]);
                }
            }
        });
    }

    void prepare(std::size_t blocks) override { _marks.resize(std::max(_marks.size(), blocks)); }
    void begin_block(std::size_t k) override {
        _worker.submit([this, k] { _marks[k].begin = Clock::now(); });
    }
    void end_block(std::size_t k) override {
        _marks[k].task = _worker.submit([this, k] { _marks[k].end = Clock::now(); });
    }
    void wait_for_block(std::size_t k) override { _worker.wait(_marks[k].task); }
    double seconds_of_block(std::size_t k) override {
        return std::chrono::duration<double>(_marks[k].end - _marks[k].begin).count();
    }
    void finish_computing() override { _worker.wait_for_all(); }

    void copy_to_host(void* target, const void* source, std::size_t bytes) override {
        std::memcpy(target, source, bytes);
    }
    void finish_copies() override {}
    void mark_communication() override {}
    void wait_for_mark() override {}
    hipStream_t communication_stream() const override { return nullptr; }

  private:
    using Clock = std::chrono::steady_clock;
    struct Marks {
        Clock::time_point begin;
        Clock::time_point end;
        std::size_t task = 0;
    };

    HostBlas _blas;
    std::vector<Marks> _marks;
    Worker _worker;  // last: its thread ends before the rest goes
};

}  // namespace

std::unique_ptr<Machine> make_host_machine() {
    return std::make_unique<HostMachine>();
}

}  // namespace xtx
