// SPDX-License-Identifier: Apache-2.0
#include "simulation.h"

#include <limits>

#include "program.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

std::unique_ptr<Compute> make_compute(const Options& options, const Block& block, apps::Kernels* kernels,
                                      std::string& problem) {
    if (options.memory == Memory::host) {
        return compute_on_host(block);
    }
    if (options.memory == Memory::staged) {
        return compute_staged(block, *kernels, problem);
    }
    return compute_on_device(block, *kernels,
                             options.exchange == Exchange::overlap ? Beside::exchange : Beside::nothing);
}

/// The cells that can be computed before the halo has arrived, and around them a frame, which cannot. The frame is as
/// wide as the halo; one cell would do for this stencil. A block that is not larger than that is all frame.
Region inner_region(const Block& block) {
    const Region inner = {block.nhalo, block.isize - block.nhalo, block.nhalo, block.jsize - block.nhalo};
    return inner.empty() ? Region{0, 0, 0, 0} : inner;
}

/// A region cut into pieces of some rows each, in order.
std::vector<Region> pieces_of(const Region& region, Index count) {
    std::vector<Region> pieces;
    const Index rows = region.jend - region.jbegin;
    for (Index piece = 0; piece < count; ++piece) {
        Region part = region;
        part.jbegin = region.jbegin + rows * piece / count;
        part.jend = region.jbegin + rows * (piece + 1) / count;
        if (!part.empty()) {
            pieces.push_back(part);
        }
    }
    return pieces;
}

/// Does some work and returns the seconds that it took.
double seconds_of(const auto& work) {
    const double start_time = MPI_Wtime();
    work();
    return MPI_Wtime() - start_time;
}

}  // namespace

Simulation::Simulation(const std::string& program, const Options& options, const Block& block, const Machine& machine)
    : _options(options), _block(block) {
    const double start_time = MPI_Wtime();
    {
        const apps::Range range("allocation");
        _x = Array(options.memory, block.cells());
        _xnew = Array(options.memory, block.cells());
    }
    _times.allocation = MPI_Wtime() - start_time;

    std::string problem = !_x.problem().empty() ? _x.problem() : _xnew.problem();
    if (problem.empty()) {
        _compute = make_compute(options, block, machine.kernels(), problem);
    }
    apps::leave_if(program, problem.empty()
                                ? ""
                                : "no memory for two arrays of " + std::to_string(block.cells()) + " doubles on rank " +
                                      std::to_string(apps::rank_of_world()) + " (" + name_of(options.memory) + ": " +
                                      problem + "): use a smaller field or more ranks");

    if (options.exchange == Exchange::overlap && kernels_reach(options.memory)) {
        _communication = compute_on_device(block, *machine.kernels(), Beside::kernels);
    }
    _exchange = make_exchange(options, block, _communication ? *_communication : *_compute, machine.ccl());
}

void Simulation::set(const std::vector<double>& u, const std::vector<double>& v) {
    const double start_time = MPI_Wtime();
    constexpr double nowhere = std::numeric_limits<double>::quiet_NaN();
    const double* const own_u = u.data() + _block.ibegin;
    const double* const own_v = v.data() + _block.jbegin;
    // Where the CPU can reach the array, it may be the one to touch it first.
    const std::unique_ptr<Compute> host = compute_on_host(_block);
    Compute& writer = _options.first_touch == Processor::cpu ? *host : *_compute;
    writer.fill(_x.data(), own_u, own_v, nowhere);
    writer.fill(_xnew.data(), nullptr, nullptr, nowhere);
    writer.wait();
    _times.initial = MPI_Wtime() - start_time;
}

void Simulation::set(const std::vector<double>& cells) {
    copy_from_host(_options.memory, _x.data(), cells.data(), _block.cells());
}

std::vector<double> Simulation::cells() const {
    std::vector<double> cells(static_cast<std::size_t>(_block.cells()));
    copy_to_host(_options.memory, cells.data(), _x.data(), _block.cells());
    return cells;
}

void Simulation::boundary() {
    _times.boundary += seconds_of([&] { _compute->start_boundary(_x.data()); });
    finish_boundary();
}

void Simulation::finish_boundary() {
    const apps::Range range("boundary");
    _times.boundary += seconds_of([&] { _compute->finish_boundary(_x.data()); });
}

void Simulation::exchange() {
    _times.ghost += seconds_of([&] { _exchange->update(_x.data()); });
}

void Simulation::update_halo() {
    if (!is_queued(_options.exchange)) {
        boundary();
    }
    exchange();
}

void Simulation::count_step(double seconds, bool first) {
    _times.stencil += seconds;
    if (first) {
        _times.first_stencil = seconds;
    }
    _times.kernels.add(_compute->take_blur_time());
}

/// The step, then the halo.
void Simulation::step(bool first) {
    {
        const apps::Range range("stencil");
        const double seconds = seconds_of([&] {
            _compute->blur(_xnew.data(), _x.data(), {0, _block.isize, 0, _block.jsize});
            // The GPU is not to wait for the CPU in between.
            _compute->start_boundary(_xnew.data());
            _compute->wait_for_blur();
        });
        count_step(seconds, first);
    }
    _x.swap(_xnew);
    finish_boundary();
    exchange();
}

/// The halo of the last step travels while this step is made where it needs no halo. What counts as the stencil's time
/// is what the CPU spends on it, or waits for it.
void Simulation::overlapped_step(bool first) {
    double seconds = 0;
    const auto compute = [&](const auto& work) {
        const apps::Range range("stencil");
        seconds += seconds_of(work);
    };
    const Region inner = inner_region(_block);
    if (_communication) {
        // The GPU goes on by itself while the CPU is in MPI.
        compute([&] { _compute->blur(_xnew.data(), _x.data(), inner); });
        exchange();
    } else {
        // The CPU does both in turns: many enough for messages that take a few calls of MPI, and few enough to cost
        // nothing.
        constexpr Index turns = 16;
        _times.ghost += seconds_of([&] { _exchange->begin(_x.data()); });
        for (const Region& piece : pieces_of(inner, turns)) {
            compute([&] { _compute->blur(_xnew.data(), _x.data(), piece); });
            _times.ghost += seconds_of([&] { _exchange->progress(); });
        }
        _times.ghost += seconds_of([&] { _exchange->finish(); });
    }
    compute([&] {
        _compute->blur_frame(_xnew.data(), _x.data(), inner);
        // The GPU is not to wait for the CPU in between.
        _compute->start_boundary(_xnew.data());
        _compute->wait_for_blur();
    });
    count_step(seconds, first);
    _x.swap(_xnew);
    finish_boundary();
}

/// The stream orders all that a step consists of, and the CPU goes on to the next one unless it `waits` for this one
/// and those before it. Then the GPU says what the stencil took; the rest of the time is the halo's.
void Simulation::queued_step(bool first, bool waits) {
    _times.ghost += seconds_of([&] {
        {
            const apps::Range range("stencil");
            _compute->blur(_xnew.data(), _x.data(), {0, _block.isize, 0, _block.jsize});
        }
        _exchange->queue_halo(_xnew.data());
        if (waits) {
            _compute->wait();
        }
    });
    _x.swap(_xnew);
    if (waits) {
        const KernelTime time = _compute->take_blur_time();
        _times.ghost -= time.seconds;
        _times.stencil += time.seconds;
        _times.kernels.add(time);
        if (first) {
            _times.first_stencil = time.seconds;
        }
    }
}

void Simulation::run(Index iterations) {
    const bool overlap = _options.exchange == Exchange::overlap;
    if (overlap) {
        boundary();
    } else {
        update_halo();
    }
    // The first step's time is told by itself; and there are two events for each step that is not waited for.
    constexpr Index steps_between_waits = 1000;
    const double start_time = MPI_Wtime();
    for (Index iteration = 0; iteration < iterations; ++iteration) {
        const bool first = iteration == 0;
        if (is_queued(_options.exchange)) {
            queued_step(first, iteration % steps_between_waits == 0 || iteration + 1 == iterations);
        } else if (overlap) {
            overlapped_step(first);
        } else {
            step(first);
        }
    }
    // Every step ends with a new halo, and so does the last.
    if (overlap) {
        exchange();
    }
    _times.loop = MPI_Wtime() - start_time;
}

}  // namespace ghost_exchange
