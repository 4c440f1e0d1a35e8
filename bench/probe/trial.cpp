// SPDX-License-Identifier: Apache-2.0
#include "probe/trial.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "mpi/mpi_functions.h"

namespace awaken::probe {

Values numbers(const int who, const int count) {
    Values values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), (who + 1) * 7919);
    return values;
}

Integers::Integers(gpu::Runtime& gpu, const int device, const bench::BufferKind kind, const Values& values)
    : _buffer(gpu, device, {kind, false}, values.size() * sizeof(std::int32_t)), _count(values.size()) {
    _buffer.write(std::as_bytes(std::span(values)));
}

Values Integers::read() const {
    Values values(_count);
    _buffer.read(std::as_writable_bytes(std::span(values)));
    return values;
}

Trial::Trial(const bench::Placement& placement, MPI_Comm communicator, const bench::BufferKind kind, const int tag)
    : _placement(placement), _communicator(communicator), _kind(kind), _device(placement.device), _tag(tag) {
    MPI_Comm_rank(communicator, &_rank);
    MPI_Comm_size(communicator, &_ranks);
}

std::span<const int> Trial::counts() {
    static constexpr std::array kCounts = {16, 1 << 16};
    return kCounts;
}

void Trial::require(const int code) const {
    if (code != MPI_SUCCESS) {
        throw CallFailed(bench::error_text(code));
    }
}

void Trial::expect(const Integers& buffer, const Values& expected, const char* const what) {
    expect(buffer.read(), expected, what);
}

void Trial::expect(const Values& found, const Values& expected, const char* const what) {
    const auto [wrong, right] = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
    if (wrong == found.end() && right == expected.end()) {
        return;
    }
    const auto index = wrong - found.begin();
    throw WrongData("element " + std::to_string(index) + " of " + std::to_string(expected.size()) + " in " + what +
                    " is " + (wrong == found.end() ? "missing" : std::to_string(*wrong)) + " instead of " +
                    (right == expected.end() ? "the end" : std::to_string(*right)));
}

void Trial::wait(MPI_Request& request) const {
    require(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

void Trial::run_persistent(MPI_Request& request) const {
    require(MPI_Start(&request));
    require(MPI_Wait(&request, MPI_STATUS_IGNORE));
    require(MPI_Request_free(&request));
}

}  // namespace awaken::probe
