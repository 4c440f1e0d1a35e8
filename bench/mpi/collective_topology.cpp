// SPDX-License-Identifier: Apache-2.0
#include "mpi/collective_topology.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "base/printable.h"
#include "engine/options.h"
#include "mpi/clock.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {
namespace {

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// False when `text` is not a whole number that a rank could be.
bool read_rank(std::string_view text, int& rank) {
    text = trimmed(text);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
    return error == std::errc() && end == text.data() + text.size() && rank >= 0;
}

std::vector<int> count_repeats(const std::vector<int>& ranks) {
    std::map<int, int> seen;
    std::vector<int> repeats;
    repeats.reserve(ranks.size());
    for (const int rank : ranks) {
        repeats.push_back(seen[rank]++);
    }
    return repeats;
}

Neighbors with_repeats(std::vector<int> sources, std::vector<int> destinations) {
    Neighbors neighbors{std::move(sources), std::move(destinations), {}, {}};
    neighbors.source_repeats = count_repeats(neighbors.sources);
    neighbors.destination_repeats = count_repeats(neighbors.destinations);
    return neighbors;
}

std::string read_file(const std::string& name) {
    const InputFile file = read_input_file(name, kLargestListFile);
    if (!file.why_not.empty()) {
        throw Error("the graph file " + name + " cannot be read (" + file.why_not + ")",
                    "name a file with one \"SOURCE, DESTINATION\" a line: -N graph:FILE");
    }
    return file.text;
}

/// Rank 0 reads the file, so that all ranks see the same graph, and the same error.
std::vector<Edge> read_graph(const Environment& environment, const std::string& name) {
    std::vector<Edge> edges;
    std::string cause, remedy;
    if (environment.rank == 0) {
        try {
            edges = parse_graph(read_file(name), name, environment.ranks);
        } catch (const Error& error) {
            cause = error.cause();
            remedy = error.remedy();
        }
    }
    cause = broadcast_text(cause, 0, environment.communicator);
    remedy = broadcast_text(remedy, 0, environment.communicator);
    if (!cause.empty()) {
        throw Error(cause, remedy);
    }
    auto count = static_cast<unsigned long long>(edges.size());
    check_mpi(MPI_Bcast(&count, 1, MPI_UNSIGNED_LONG_LONG, 0, environment.communicator), "MPI_Bcast");
    edges.resize(count);
    check_mpi(MPI_Bcast(edges.data(), static_cast<int>(count * sizeof(Edge)), MPI_BYTE, 0, environment.communicator),
              "MPI_Bcast");
    return edges;
}

}  // namespace

std::vector<Edge> parse_graph(const std::string& text, const std::string& name, int ranks) {
    std::vector<Edge> edges;
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
        const std::string_view content = trimmed(line);
        if (content.empty() || content.front() == '#') {
            continue;
        }
        const std::string place = "line " + std::to_string(number) + " of " + name;
        const std::size_t comma = content.find(',');
        Edge edge{};
        if (comma == std::string_view::npos || !read_rank(content.substr(0, comma), edge.source) ||
            !read_rank(content.substr(comma + 1), edge.destination)) {
            throw Error(place + " is not an edge: \"" + excerpt(content) + "\"",
                        "write two ranks with a comma between them, or begin the line with #");
        }
        if (edge.source >= ranks || edge.destination >= ranks) {
            throw Error(place + " names rank " + std::to_string(std::max(edge.source, edge.destination)) + " of " +
                            std::to_string(ranks) + " ranks",
                        "start more ranks, or take the edge out");
        }
        edges.push_back(edge);
    }
    return edges;
}

Neighbors neighbors_in_graph(const std::vector<Edge>& edges, int rank) {
    std::vector<int> sources, destinations;
    for (const Edge& edge : edges) {
        if (edge.source == rank) {
            destinations.push_back(edge.destination);
        }
        if (edge.destination == rank) {
            sources.push_back(edge.source);
        }
    }
    return with_repeats(std::move(sources), std::move(destinations));
}

Neighbors neighbors_in_grid(const std::vector<int>& dimensions, int radius, int rank) {
    std::vector<int> position(dimensions.size());
    int rest = rank;
    for (std::size_t d = dimensions.size(); d-- > 0;) {
        if (dimensions[d] < 2 * radius + 1) {
            throw Error("a radius of " + std::to_string(radius) + " does not fit a grid that is " +
                            std::to_string(dimensions[d]) + " ranks wide",
                        "start more ranks (" + std::to_string(2 * radius + 1) +
                            " in each dimension), or choose a smaller radius or fewer dimensions: -N cart:DIM:RAD");
        }
        position[d] = rest % dimensions[d];
        rest /= dimensions[d];
    }
    std::vector<int> found;
    std::vector<int> offset(dimensions.size(), -radius);
    for (bool more = true; more;) {
        int other = 0;
        for (std::size_t d = 0; d < dimensions.size(); ++d) {
            other = other * dimensions[d] + (position[d] + offset[d] + dimensions[d]) % dimensions[d];
        }
        if (other != rank) {
            found.push_back(other);
        }
        more = false;
        for (std::size_t d = dimensions.size(); d-- > 0 && !more;) {
            more = ++offset[d] <= radius;
            if (!more) {
                offset[d] = -radius;
            }
        }
    }
    return with_repeats(found, found);
}

Topology::Topology(const Environment& environment) {
    const Neighborhood& wanted = environment.options.neighborhood;
    if (wanted.cartesian) {
        _dimensions.assign(static_cast<std::size_t>(wanted.dimensions), 0);
        check_mpi(MPI_Dims_create(environment.ranks, wanted.dimensions, _dimensions.data()), "MPI_Dims_create");
        _neighbors = neighbors_in_grid(_dimensions, wanted.radius, environment.rank);
    } else {
        _neighbors = neighbors_in_graph(read_graph(environment, wanted.graph_file), environment.rank);
    }
    const std::vector<int> source_weights(_neighbors.sources.size(), 1);
    const std::vector<int> destination_weights(_neighbors.destinations.size(), 1);
    const double start = now();
    check_mpi(MPI_Dist_graph_create_adjacent(
                  environment.communicator, static_cast<int>(_neighbors.sources.size()), _neighbors.sources.data(),
                  source_weights.data(), static_cast<int>(_neighbors.destinations.size()),
                  _neighbors.destinations.data(), destination_weights.data(), MPI_INFO_NULL, 0, &_communicator),
              "MPI_Dist_graph_create_adjacent");
    _creation_us = over_ranks_at_root((now() - start) * 1e6 / environment.ranks, MPI_SUM, environment.communicator);
}

Topology::~Topology() {
    if (_communicator != MPI_COMM_NULL) {
        MPI_Comm_free(&_communicator);
    }
}

}  // namespace awaken::bench
