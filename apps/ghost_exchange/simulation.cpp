#include "simulation.h"

#include <limits>

#include "program.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

std::unique_ptr<Compute> make_compute(const Options& options, const Block& block, apps::Kernels* kernels,
                                      std::string& problem) {
    if (options.memory == Memory::host) return compute_on_host(block);
    if (options.memory == Memory::staged) return compute_staged(block, *kernels, problem);
    return compute_on_device(block, *kernels, false);
}

/// The cells that can be computed before the halo has arrived, and around them a frame, which cannot. The frame is as
/// wide as the halo; one cell would do for this stencil. A block that is not larger than that is all frame.
Region inner_region(const Block& block) {
    const Region inner = {block.nhalo, block.isize - block.nhalo, block.nhalo, block.jsize - block.nhalo};
    return inner.empty() ? Region{0, 0, 0, 0} : inner;
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
    if (problem.empty()) _compute = make_compute(options, block, machine.kernels(), problem);
    apps::leave_if(program, problem.empty()
                                ? ""
                                : "no memory for two arrays of " + std::to_string(block.cells()) + " doubles on rank " +
                                      std::to_string(apps::rank_of_world()) + " (" + name_of(options.memory) + ": " +
                                      problem + "): use a smaller field or more ranks");

    if (options.exchange == Exchange::overlap) _communication = compute_on_device(block, *machine.kernels(), true);
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
    _compute->boundary(_x.data());
    finish_boundary();
}

void Simulation::finish_boundary() {
    const apps::Range range("boundary");
    const double start_time = MPI_Wtime();
    _compute->wait();
    _times.boundary += MPI_Wtime() - start_time;
}

void Simulation::exchange() {
    const double start_time = MPI_Wtime();
    _exchange->update(_x.data());
    _times.ghost += MPI_Wtime() - start_time;
}

void Simulation::update_halo() {
    boundary();
    exchange();
}

void Simulation::count_step(double start_time, bool first) {
    const double seconds = MPI_Wtime() - start_time;
    _times.stencil += seconds;
    if (first) _times.first_stencil = seconds;
    _times.kernels += _compute->blur_seconds();
}

/// The step, then the halo.
void Simulation::step(bool first) {
    {
        const apps::Range range("stencil");
        const double start_time = MPI_Wtime();
        _compute->blur(_xnew.data(), _x.data(), {0, _block.isize, 0, _block.jsize});
        // The GPU is not to wait for the CPU in between.
        _compute->boundary(_xnew.data());
        _compute->wait_for_blur();
        count_step(start_time, first);
    }
    _x.swap(_xnew);
    finish_boundary();
    exchange();
}

/// The halo of the last step travels while the GPU makes this step where it needs no halo: what counts as the stencil's
/// time is what the CPU still has to wait for it.
void Simulation::overlapped_step(bool first) {
    double start_time = MPI_Wtime();
    {
        const apps::Range range("stencil");
        _compute->blur(_xnew.data(), _x.data(), inner_region(_block));
    }
    const double launched = MPI_Wtime() - start_time;
    exchange();
    {
        const apps::Range range("stencil");
        start_time = MPI_Wtime() - launched;
        _compute->blur_frame(_xnew.data(), _x.data(), inner_region(_block));
        // The GPU is not to wait for the CPU in between.
        _compute->boundary(_xnew.data());
        _compute->wait_for_blur();
        count_step(start_time, first);
    }
    _x.swap(_xnew);
    finish_boundary();
}

void Simulation::run(Index iterations) {
    const bool overlap = _options.exchange == Exchange::overlap;
    boundary();
    if (!overlap) exchange();
    const double start_time = MPI_Wtime();
    for (Index iteration = 0; iteration < iterations; ++iteration) {
        if (overlap) {
            overlapped_step(iteration == 0);
        } else {
            step(iteration == 0);
        }
    }
    // Every step ends with a new halo, and so does the last.
    if (overlap) exchange();
    _times.loop = MPI_Wtime() - start_time;
}

}  // namespace ghost_exchange
