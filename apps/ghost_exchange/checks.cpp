// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>

#include "program.h"

namespace ghost_exchange {

namespace {

constexpr double epsilon = std::numeric_limits<double>::epsilon();

/// Up to here the whole field is computed again on the CPU by each rank, in a second or so.
constexpr double most_recomputed_steps_of_cells = 2e8;
constexpr double most_recomputed_cells = 1e7;

std::string place(Index j, Index i) {
    return "cell (" + std::to_string(i) + ", " + std::to_string(j) + ")";
}

std::string with_digits(double value) {
    std::array<char, 32> text = {};
    std::snprintf(text.data(), text.size(), "%.17g", value);
    return text.data();
}

bool same_bits(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

/// Tells the outcome of a check; `problem` is this rank's. Returns whether it is empty everywhere. Collective.
bool tell(const char* name, const std::string& checked, const std::string& problem) {
    const std::string first =
        apps::first_problem(problem.empty() ? "" : "rank " + std::to_string(apps::rank_of_world()) + ": " + problem);
    if (apps::rank_of_world() == 0) {
        std::printf("# check %s: %s%s\n", name, first.empty() ? "right" : "WRONG", (", " + checked).c_str());
        std::fflush(stdout);
        if (!first.empty()) {
            std::fprintf(stderr, "wrong data: %s: %s\n", name, first.c_str());
        }
    }
    return first.empty();
}

/// The field after some steps, by one loop over all cells: imax * jmax cells, no halo.
std::vector<double> computed_by_one(const Block& block, const Factors& initial, Index iterations) {
    const Index imax = block.imax;
    const Index jmax = block.jmax;
    std::vector<double> x(static_cast<std::size_t>(imax * jmax));
    std::vector<double> xnew(x.size());
    for (Index j = 0; j < jmax; ++j) {
        for (Index i = 0; i < imax; ++i) {
            x[static_cast<std::size_t>(j * imax + i)] =
                initial.u[static_cast<std::size_t>(i)] * initial.v[static_cast<std::size_t>(j)];
        }
    }
    for (Index iteration = 0; iteration < iterations; ++iteration) {
        for (Index j = 0; j < jmax; ++j) {
            const double* const row = x.data() + j * imax;
            // Outside the field lies the nearest cell of it.
            const double* const below = x.data() + std::max<Index>(j - 1, 0) * imax;
            const double* const above = x.data() + std::min(j + 1, jmax - 1) * imax;
            for (Index i = 0; i < imax; ++i) {
                const double left = row[std::max<Index>(i - 1, 0)];
                const double right = row[std::min(i + 1, imax - 1)];
                xnew[static_cast<std::size_t>(j * imax + i)] = (row[i] + left + right + below[i] + above[i]) / 5.0;
            }
        }
        x.swap(xnew);
    }
    return x;
}

bool check_decomposition(const Block& block, const std::vector<double>& cells, const Factors& initial,
                         Index iterations) {
    const double all = static_cast<double>(block.imax) * static_cast<double>(block.jmax);
    if (all > most_recomputed_cells || all * static_cast<double>(iterations) > most_recomputed_steps_of_cells) {
        if (apps::rank_of_world() == 0) {
            std::printf(
                "# check decomposition: too large to be computed by one rank: compare the checksum with that of "
                "another run\n");
        }
        return true;
    }
    const std::vector<double> expected = computed_by_one(block, initial, iterations);
    std::string problem;
    for (Index j = 0; j < block.jsize && problem.empty(); ++j) {
        for (Index i = 0; i < block.isize && problem.empty(); ++i) {
            const Index gi = block.ibegin + i;
            const Index gj = block.jbegin + j;
            const double right = expected[static_cast<std::size_t>(gj * block.imax + gi)];
            const double computed = cells[static_cast<std::size_t>(block.at(j, i))];
            if (!same_bits(computed, right)) {
                problem = place(gj, gi) + ": " + with_digits(computed) + " instead of " + with_digits(right);
            }
        }
    }
    return tell("decomposition", "each cell has the bits that one rank computes", problem);
}

bool check_mass(const Block& block, const std::vector<double>& cells, const Factors& initial, Index iterations) {
    double before = 0;
    double after = 0;
    for (Index j = 0; j < block.jsize; ++j) {
        // Row by row, so that a sum of n cells is rounded about 2 sqrt(n) times on the way and not n times.
        double row_before = 0;
        double row_after = 0;
        for (Index i = 0; i < block.isize; ++i) {
            row_before += initial.u[static_cast<std::size_t>(block.ibegin + i)] *
                          initial.v[static_cast<std::size_t>(block.jbegin + j)];
            row_after += cells[static_cast<std::size_t>(block.at(j, i))];
        }
        before += row_before;
        after += row_after;
    }
    std::array<double, 2> masses = {before, after};
    MPI_Allreduce(MPI_IN_PLACE, masses.data(), 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    // No cell is negative. A step rounds each cell by less than four units in its last place, the sums as often as
    // there are cells in a row and rows.
    const double roundings =
        4 * static_cast<double>(iterations) + 2 * static_cast<double>(block.imax + block.jmax) + 16;
    const double tolerance = epsilon * roundings;
    // The Gaussian of a field of one cell is so narrow that there is nothing.
    const double relative = masses[1] == masses[0] ? 0 : (masses[1] - masses[0]) / masses[0];
    std::array<char, 96> text = {};
    std::snprintf(text.data(), text.size(), "changed by %.2g relative, rounding allows %.2g", relative, tolerance);
    // Written so that what is not a number is not right either.
    const bool right = std::abs(relative) <= tolerance;
    return tell("mass", text.data(), right ? "" : "the sum over all cells " + std::string(text.data()));
}

bool check_halo(Simulation& simulation) {
    const Block& block = simulation.block();
    const auto value = [&](Index gj, Index gi) { return 1 + static_cast<double>(gj * block.imax + gi); };
    const double nowhere = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> cells(static_cast<std::size_t>(block.cells()), nowhere);
    for (Index j = 0; j < block.jsize; ++j) {
        for (Index i = 0; i < block.isize; ++i) {
            cells[static_cast<std::size_t>(block.at(j, i))] = value(block.jbegin + j, block.ibegin + i);
        }
    }
    simulation.set(cells);
    simulation.update_halo();
    cells = simulation.cells();

    std::string problem;
    for (Index j = -block.nhalo; j < block.jsize + block.nhalo && problem.empty(); ++j) {
        for (Index i = -block.nhalo; i < block.isize + block.nhalo && problem.empty(); ++i) {
            const bool corner = (i < 0 || i >= block.isize) && (j < 0 || j >= block.jsize);
            if (corner && !block.corners) {
                continue;
            }
            const Index gi = std::clamp<Index>(block.ibegin + i, 0, block.imax - 1);
            const Index gj = std::clamp<Index>(block.jbegin + j, 0, block.jmax - 1);
            const double found = cells[static_cast<std::size_t>(block.at(j, i))];
            if (same_bits(found, value(gj, gi))) {
                continue;
            }
            problem = "the block's " + place(j, i) + ": " + with_digits(found) + " instead of " +
                      with_digits(value(gj, gi)) + " of the field's " + place(gj, gi);
        }
    }
    return tell("halo", block.corners ? "corners included" : "without corners (-c)", problem);
}

bool check_eigenmode(Simulation& simulation, Index iterations) {
    const Block& block = simulation.block();
    const Index steps = std::min<Index>(iterations, 100);
    const auto waves_x = static_cast<double>(std::min<Index>(3, block.imax - 1));
    const auto waves_y = static_cast<double>(std::min<Index>(5, block.jmax - 1));
    const auto mode = [](double waves, Index cells) {
        std::vector<double> factors(static_cast<std::size_t>(cells));
        for (std::size_t i = 0; i < factors.size(); ++i) {
            factors[i] =
                std::cos(std::numbers::pi * waves * (static_cast<double>(i) + 0.5) / static_cast<double>(cells));
        }
        return factors;
    };
    const Factors factors = {mode(waves_x, block.imax), mode(waves_y, block.jmax)};
    const double factor = (1 + 2 * std::cos(std::numbers::pi * waves_x / static_cast<double>(block.imax)) +
                           2 * std::cos(std::numbers::pi * waves_y / static_cast<double>(block.jmax))) /
                          5;
    simulation.set(factors.u, factors.v);
    simulation.run(steps);
    const std::vector<double> cells = simulation.cells();

    // A step averages, so it makes no error larger, and adds roundings of a few units in the last place of the largest
    // value, |factor|^step.
    double tolerance = 0;
    double shrunk = 1;
    for (Index step = 0; step < steps; ++step) {
        tolerance += 8 * epsilon * shrunk;
        shrunk *= std::abs(factor);
    }
    tolerance += 8 * epsilon;
    const double scale = std::pow(factor, static_cast<double>(steps));
    double largest = 0;
    std::string problem;
    for (Index j = 0; j < block.jsize; ++j) {
        for (Index i = 0; i < block.isize; ++i) {
            const Index gi = block.ibegin + i;
            const Index gj = block.jbegin + j;
            const double right =
                scale * factors.u[static_cast<std::size_t>(gi)] * factors.v[static_cast<std::size_t>(gj)];
            const double computed = cells[static_cast<std::size_t>(block.at(j, i))];
            const double error = std::abs(computed - right);
            if (error <= tolerance) {
                largest = std::max(largest, error);
            } else if (problem.empty()) {
                problem = place(gj, gi) + " after " + std::to_string(steps) + " steps: " + with_digits(computed) +
                          " instead of " + with_digits(right);
            }
        }
    }
    MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    std::array<char, 96> text = {};
    std::snprintf(text.data(), text.size(), "after %lld steps off by %.2g at most, rounding allows %.2g", steps,
                  largest, tolerance);
    return tell("eigenmode", text.data(), problem);
}

}  // namespace

Factors gaussian(const Block& block) {
    const double sigma = 0.01 * static_cast<double>(block.imax) * static_cast<double>(block.jmax);
    const auto factors = [&](Index cells) {
        std::vector<double> values(static_cast<std::size_t>(cells));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double distance = static_cast<double>(i) - static_cast<double>(cells) / 2;
            values[i] = std::exp(-distance * distance / (2 * sigma * sigma));
        }
        return values;
    };
    return {factors(block.imax), factors(block.jmax)};
}

bool check(Simulation& simulation, const Factors& initial, Index iterations) {
    const Block& block = simulation.block();
    const std::vector<double> cells = simulation.cells();
    bool right = check_decomposition(block, cells, initial, iterations);
    right = check_mass(block, cells, initial, iterations) && right;
    right = check_halo(simulation) && right;
    return check_eigenmode(simulation, iterations) && right;
}

std::uint64_t checksum(const Block& block, const std::vector<double>& cells) {
    std::uint64_t sum = 0;
    for (Index j = 0; j < block.jsize; ++j) {
        for (Index i = 0; i < block.isize; ++i) {
            // The place goes in, and the finaliser of SplitMix64 spreads each bit over all; so that cells may be added
            // in any order, and exchanged cells show.
            const auto number = static_cast<std::uint64_t>((block.jbegin + j) * block.imax + block.ibegin + i);
            std::uint64_t word = std::bit_cast<std::uint64_t>(cells[static_cast<std::size_t>(block.at(j, i))]);
            word += (number + 1) * 0x9e3779b97f4a7c15U;
            word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9U;
            word = (word ^ (word >> 27)) * 0x94d049bb133111ebU;
            sum ^= word ^ (word >> 31);
        }
    }
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
    return sum;
}

namespace {

int open_to_write(const std::string& file, MPI_File& handle) {
    return MPI_File_open(MPI_COMM_WORLD, file.c_str(), MPI_MODE_WRONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &handle);
}

/// What an error of MPI-IO says of the file, on all ranks; empty where none has one. Collective.
std::string problem_with_file(const std::string& file, int result) {
    std::string problem;
    if (result != MPI_SUCCESS) {
        std::array<char, MPI_MAX_ERROR_STRING> text = {};
        int length = 0;
        MPI_Error_string(result, text.data(), &length);
        problem = "--write " + file + ": " + text.data();
    }
    return apps::first_problem(problem);
}

}  // namespace

std::string try_to_write(const std::string& file) {
    MPI_File handle = MPI_FILE_NULL;
    int result = open_to_write(file, handle);
    if (result == MPI_SUCCESS) {
        result = MPI_File_close(&handle);
    }
    return problem_with_file(file, result);
}

std::string write_field(const Block& block, const std::vector<double>& cells, const std::string& file) {
    // The owned cells within the rank's array, and within the file.
    const auto rectangle = [](Index rows, Index columns, Index row, Index column, const Block& part) {
        const std::array<int, 2> sizes = {static_cast<int>(rows), static_cast<int>(columns)};
        const std::array<int, 2> own = {static_cast<int>(part.jsize), static_cast<int>(part.isize)};
        const std::array<int, 2> starts = {static_cast<int>(row), static_cast<int>(column)};
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_create_subarray(2, sizes.data(), own.data(), starts.data(), MPI_ORDER_C, MPI_DOUBLE, &type);
        MPI_Type_commit(&type);
        return type;
    };
    MPI_Datatype in_array = rectangle(block.jsize + 2 * block.nhalo, block.stride(), block.nhalo, block.nhalo, block);
    MPI_Datatype in_file = rectangle(block.jmax, block.imax, block.jbegin, block.ibegin, block);
    MPI_File handle = MPI_FILE_NULL;
    int result = open_to_write(file, handle);
    if (result == MPI_SUCCESS) {
        MPI_File_set_size(handle, 0);
        MPI_File_set_view(handle, 0, MPI_DOUBLE, in_file, "native", MPI_INFO_NULL);
        result = MPI_File_write_all(handle, cells.data(), 1, in_array, MPI_STATUS_IGNORE);
        const int closed = MPI_File_close(&handle);
        if (result == MPI_SUCCESS) {
            result = closed;
        }
    }
    MPI_Type_free(&in_array);
    MPI_Type_free(&in_file);
    return problem_with_file(file, result);
}

void print_field(const Block& block, const std::vector<double>& cells) {
    constexpr Index most_columns = 100;
    const int rank = apps::rank_of_world();
    if (block.imax + 2 * block.nhalo > most_columns) {
        if (rank == 0) {
            std::printf("# a row has more than %lld cells with its halo: not printed\n", most_columns);
        }
        return;
    }
    // Each rank's text is one message, whose length is an int; and nobody reads more.
    constexpr Index most_rows = 10'000;
    if (block.jmax + 2 * block.nhalo > most_rows) {
        if (rank == 0) {
            std::printf("# a column has more than %lld cells with its halo: not printed\n", most_rows);
        }
        return;
    }
    std::string text;
    for (Index j = block.jsize + block.nhalo - 1; j >= -block.nhalo; --j) {
        text += "#";
        for (Index i = -block.nhalo; i < block.isize + block.nhalo; ++i) {
            std::array<char, 32> cell = {};
            std::snprintf(cell.data(), cell.size(), " %8.5f", cells[static_cast<std::size_t>(block.at(j, i))]);
            text += cell.data();
        }
        text += "\n";
    }
    const int tag = 1;
    if (rank != 0) {
        MPI_Send(text.data(), static_cast<int>(text.size()), MPI_CHAR, 0, tag, MPI_COMM_WORLD);
        return;
    }
    for (int source = 0; source < apps::size_of_world(); ++source) {
        if (source != 0) {
            MPI_Status status;
            int length = 0;
            MPI_Probe(source, tag, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_CHAR, &length);
            text.resize(static_cast<std::size_t>(length));
            MPI_Recv(text.data(), length, MPI_CHAR, source, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        std::printf("# rank %d, with its halo\n%s", source, text.c_str());
    }
    std::fflush(stdout);
}

}  // namespace ghost_exchange
