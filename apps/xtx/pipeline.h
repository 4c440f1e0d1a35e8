// SPDX-License-Identifier: Apache-2.0
// The products and reductions of all blocks, one after the other or overlapping.
//
//   compute stream        | product 1 | product 2 | product 3 |  ...
//   communication                     | sum 1, copy 1 | sum 2, copy 2 | ...
//
// With overlap, block k + 1 is multiplied into one buffer while block k is summed up over the ranks in the other and
// copied to the host. Everything is made beforehand: a run allocates nothing.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "machine.h"
#include "plan.h"
#include "ranges.h"
#include "reduction.h"

namespace xtx {

/// Seconds that one block took in one run.
struct Step {
    double product = 0;        ///< on the GPU, or on the thread that stands for it
    double communication = 0;  ///< from the start of the sum until the block was in host memory
    double reduction = 0;      ///< of that, the sum
};

/// What happens to block k in host memory, before the next one lands there: a program puts it into its own matrix.
using Consumer = std::function<void(std::size_t k, const void* block)>;

class Pipeline {
  public:
    /// Allocates and fills X and makes the buffers. Where there is no room, problem() tells why, and there is no
    /// pipeline. `sharers` ranks share the machine's memory. Collective.
    Pipeline(const Problem& problem, const Rows& rows, Input input, std::size_t sharers, Machine& machine,
             Reduction& reduction)
        : _problem(problem), _rows(rows), _blocks(blocks_of(problem)), _machine(machine), _reduction(reduction) {
        allocate(sharers);
        if (!_refusal.empty()) {
            return;
        }
        const Filling filling(problem, input, rows);
        const std::size_t count = numbers_of(rows.count);
        _machine.fill(static_cast<double*>(_X), count, filling);
        if (_X_single != nullptr) {
            _machine.narrow(static_cast<float*>(_X_single), numbers_of(rows_in_single(rows)),
                            static_cast<const double*>(_X), count);
        }
        _machine.finish_computing();
        _machine.prepare(_blocks.size());
    }
    ~Pipeline() {
        for (void* memory : {_X, _X_single, _whole, _buffers[0], _buffers[1]}) {
            if (memory != nullptr) {
                _machine.free(memory);
            }
        }
        if (_host != nullptr) {
            _machine.free_on_host(_host);
        }
    }
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    [[nodiscard]] const std::string& problem() const { return _refusal; }

    /// Makes all of S once. Collective.
    std::vector<Step> run(bool overlaps, const Consumer& consume) {
        std::vector<Step> steps(_blocks.size());
        start_product(0);
        for (std::size_t k = 0; k < _blocks.size(); ++k) {
            _machine.wait_for_block(k);
            const bool has_next = k + 1 < _blocks.size();
            // Its buffer is free: block k - 1 has reached the host.
            if (overlaps && has_next) {
                start_product(k + 1);
            }
            communicate(k, !overlaps, steps[k]);
            consume(k, _host);
            if (!overlaps && has_next) {
                start_product(k + 1);
            }
        }
        for (std::size_t k = 0; k < _blocks.size(); ++k) {
            steps[k].product = _machine.seconds_of_block(k);
        }
        return steps;
    }

    /// Seconds of one product of block k outside of the pipeline: the mean of so many calls that are queued one behind
    /// the other, with the same handle, sizes and buffers as in run(), after one more. Between them nothing is
    /// recorded, summed up or copied, and MPI is not called. The buffer holds no result of run() afterwards.
    double product_seconds(std::size_t k, long long calls) {
        queue_product(k);
        _machine.begin_block(k);
        for (long long call = 0; call < calls; ++call) {
            queue_product(k);
        }
        _machine.end_block(k);
        _machine.wait_for_block(k);
        return _machine.seconds_of_block(k) / static_cast<double>(calls);
    }

  private:
    using Clock = std::chrono::steady_clock;

    /// In so many rows of X.
    [[nodiscard]] std::size_t numbers_of(long long rows) const {
        return static_cast<std::size_t>(rows) * static_cast<std::size_t>(_problem.vectors) *
               static_cast<std::size_t>(_problem.parts());
    }

    void allocate(std::size_t sharers) {
        const apps::Range range("allocation");
        // Sizes first, in a type that cannot overflow: N, B and M each fit into 2^62.
        const double row_numbers = static_cast<double>(_problem.vectors) * static_cast<double>(_problem.parts());
        const Block& largest = _blocks.front();
        const auto block_numbers = static_cast<double>(largest.height) * static_cast<double>(largest.width) *
                                   static_cast<double>(_problem.parts());
        const bool splits = _problem.precision == Precision::mixed_communication;
        const long long single_rows = _problem.precision == Precision::mixed ? rows_in_single(_rows) : 0;
        const double needed =
            row_numbers * (8 * static_cast<double>(_rows.count) + 4 * static_cast<double>(single_rows)) +
            block_numbers * 8 * (2 + (splits ? 1 : 0) + (_machine.is_host() ? 1 : 0));
        const auto available = static_cast<double>(_machine.free_bytes() / sharers);
        // No rank allocates before all have looked: what is free is to be shared once, not by each of them anew.
        MPI_Barrier(MPI_COMM_WORLD);
        if (needed > available) {
            return refuse(needed, available);
        }

        constexpr std::size_t least = 256;  // a rank may have no rows
        _X = _machine.allocate(std::max(numbers_of(_rows.count) * sizeof(double), least));
        bool has_room = _X != nullptr;
        if (has_room && _problem.precision == Precision::mixed) {
            _X_single = _machine.allocate(std::max(numbers_of(single_rows) * sizeof(float), least));
            has_room = _X_single != nullptr;
        }
        if (has_room && splits) {
            _whole = _machine.allocate(static_cast<std::size_t>(block_numbers) * sizeof(double));
            has_room = _whole != nullptr;
        }
        std::size_t bytes = 0;
        for (const Block& block : _blocks) {
            bytes = std::max(bytes, layout_of(_problem, block).buffer_bytes());
        }
        for (void*& buffer : _buffers) {
            if (has_room) {
                buffer = _machine.allocate(bytes);
            }
            has_room = has_room && buffer != nullptr;
        }
        if (has_room) {
            _host = _machine.allocate_on_host(bytes);
            has_room = _host != nullptr;
        }
        if (!has_room) {
            refuse(needed, available);
        }
    }

    void refuse(double needed, double available) {
        std::array<char, 256> text = {};
        std::snprintf(
            text.data(), text.size(),
            "no memory for %lld rows of %lld vectors in blocks of %lld: %.3g GiB are needed and %.3g GiB free; "
            "use fewer --dofs or --vectors, smaller --block, or more ranks",
            _rows.count, _problem.vectors, _problem.block, needed / 0x1p30, available / 0x1p30);
        _refusal = text.data();
    }

    [[nodiscard]] unsigned char* buffer_of(std::size_t k) const { return static_cast<unsigned char*>(_buffers[k % 2]); }

    /// Queues what makes block k of this rank's share of S, between the block's marks.
    void start_product(std::size_t k) {
        _machine.begin_block(k);
        queue_product(k);
        _machine.end_block(k);
    }

    void queue_product(std::size_t k) {
        const Block& block = _blocks[k];
        const Layout layout = layout_of(_problem, block);
        unsigned char* const buffer = buffer_of(k);
        switch (_problem.precision) {
            case Precision::double_precision:
                multiply(block, 0, block.height, false, buffer);
                break;
            case Precision::mixed_communication:
                multiply(block, 0, block.height, false, _whole);
                split(block, buffer, layout);
                break;
            case Precision::mixed:
                multiply(block, 0, block.width, false, buffer);
                if (block.rest() > 0) {
                    multiply(block, block.width, block.rest(), true, buffer + layout.floats_offset);
                }
                break;
        }
    }

    /// `rows` rows of the block, from row `first` of it on.
    void multiply(const Block& block, long long first, long long rows, bool single, void* result) {
        const std::size_t size = (single ? sizeof(float) : sizeof(double)) * static_cast<std::size_t>(_problem.parts());
        const auto* const X = static_cast<const unsigned char*>(single ? _X_single : _X);
        Product product;
        product.single = single;
        product.is_complex = _problem.is_complex;
        product.m = rows;
        product.n = block.width;
        product.k = single ? rows_in_single(_rows) : _rows.count;
        product.a = X + static_cast<std::size_t>(block.first + first) * size;
        product.b = X + static_cast<std::size_t>(block.first) * size;
        product.leading = _problem.vectors;
        product.c = result;
        product.leading_c = rows;
        _machine.multiply(product);
    }

    void split(const Block& block, unsigned char* buffer, const Layout& layout) {
        const auto parts = static_cast<std::size_t>(_problem.parts());
        Split split;
        split.diagonal = reinterpret_cast<double*>(buffer);
        split.rest = reinterpret_cast<float*>(buffer + layout.floats_offset);
        split.block = static_cast<const double*>(_whole);
        split.height = parts * static_cast<std::size_t>(block.height);
        split.top = parts * static_cast<std::size_t>(block.width);
        split.columns = static_cast<std::size_t>(block.width);
        _machine.split(split);
    }

    /// Sums block k up over all ranks and brings it to the host. `apart`: waits in between, to time both.
    void communicate(std::size_t k, bool apart, Step& step) {
        const Layout layout = layout_of(_problem, _blocks[k]);
        const auto begin = Clock::now();
        if (_reduction.works_on_host()) {
            {
                const apps::Range range("copy");
                queue_copy(k, layout);
                _machine.finish_copies();
            }
            const auto copied = Clock::now();
            {
                const apps::Range range("reduce");
                _reduction.sum(_host, layout);
            }
            step.reduction = seconds(copied, Clock::now());
        } else {
            // What is queued in the stream of the copies needs no host between the two.
            const bool queues_both = _reduction.is_queued() && !apart;
            {
                const apps::Range range("reduce");
                _reduction.sum(buffer_of(k), layout);
                if (queues_both) {
                    _machine.mark_communication();
                    queue_copy(k, layout);
                    _machine.wait_for_mark();
                } else {
                    _reduction.finish();
                }
            }
            step.reduction = seconds(begin, Clock::now());
            const apps::Range range("copy");
            if (!queues_both) {
                queue_copy(k, layout);
            }
            _reduction.finish();
            _machine.finish_copies();
        }
        step.communication = seconds(begin, Clock::now());
    }

    void queue_copy(std::size_t k, const Layout& layout) {
        _machine.copy_to_host(_host, buffer_of(k), layout.buffer_bytes());
    }

    static double seconds(Clock::time_point from, Clock::time_point to) {
        return std::chrono::duration<double>(to - from).count();
    }

    Problem _problem;
    Rows _rows;
    std::vector<Block> _blocks;
    Machine& _machine;
    Reduction& _reduction;
    std::string _refusal;
    void* _X = nullptr;
    void* _X_single = nullptr;  ///< X in FP32, for products in that precision
    void* _whole = nullptr;     ///< a block in FP64 that is yet to be split
    std::array<void*, 2> _buffers = {};
    void* _host = nullptr;
};

}  // namespace xtx
