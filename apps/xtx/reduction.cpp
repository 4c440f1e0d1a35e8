// SPDX-License-Identifier: Apache-2.0
#include "reduction.h"

#include <algorithm>
#include <vector>

#include "device.h"
#include "stream_communicator.h"

namespace xtx {

namespace {

/// Calls sum(values, count, type) for each part of the block. A complex sum is that of its parts, so all that is summed
/// up are real numbers. MPI's large counts are not in all MPIs; calls of a part each are.
void for_each_part(void* block, const Layout& layout, std::size_t part, const auto& sum) {
    auto* const bytes = static_cast<unsigned char*>(block);
    const auto cut = [&](unsigned char* values, std::size_t count, std::size_t size, MPI_Datatype type) {
        for (std::size_t first = 0; first < count; first += part) {
            sum(values + first * size, static_cast<int>(std::min(part, count - first)), type);
        }
    };
    cut(bytes, layout.doubles, sizeof(double), MPI_DOUBLE);
    cut(bytes + layout.floats_offset, layout.floats, sizeof(float), MPI_FLOAT);
}

class MpiReduction : public Reduction {
  public:
    MpiReduction(Way way, long long part) : _way(way), _part(static_cast<std::size_t>(part)) {}

    std::string name() const override {
        if (_way == Way::mpi_nonblocking) {
            return "MPI_Iallreduce";
        }
        return _way == Way::staged ? "MPI_Allreduce on a host copy" : "MPI_Allreduce";
    }
    bool works_on_host() const override { return _way == Way::staged; }

    void sum(void* block, const Layout& layout) override {
        for_each_part(block, layout, _part, [&](void* values, int count, MPI_Datatype type) {
            if (_way == Way::mpi_nonblocking) {
                MPI_Iallreduce(MPI_IN_PLACE, values, count, type, MPI_SUM, MPI_COMM_WORLD, &_requests.emplace_back());
            } else {
                MPI_Allreduce(MPI_IN_PLACE, values, count, type, MPI_SUM, MPI_COMM_WORLD);
            }
        });
        MPI_Waitall(static_cast<int>(_requests.size()), _requests.data(), MPI_STATUSES_IGNORE);
        _requests.clear();
    }

  private:
    Way _way;
    std::size_t _part;
    std::vector<MPI_Request> _requests;
};

class CclReduction : public Reduction {
  public:
    explicit CclReduction(hipStream_t stream) : _stream(stream) {}

    const std::string& problem() const { return _ccl.problem(); }
    std::string name() const override { return _ccl.name(); }
    bool is_queued() const override { return true; }

    void sum(void* block, const Layout& layout) override {
        if (layout.floats == 0) {
            return _ccl.start_sum(static_cast<double*>(block), layout.doubles, _stream);
        }
        // Both kinds of numbers in one group are one kernel.
        _ccl.start_group();
        _ccl.start_sum(static_cast<double*>(block), layout.doubles, _stream);
        void* const floats = static_cast<unsigned char*>(block) + layout.floats_offset;
        _ccl.start_sum(static_cast<float*>(floats), layout.floats, _stream);
        _ccl.end_group();
    }
    void finish() override { _ccl.wait(_stream); }

  private:
    apps::Ccl _ccl;
    hipStream_t _stream;
};

class QueuedReduction : public Reduction {
  public:
    QueuedReduction(hipStream_t stream, long long part)
        : _communicator(stream), _stream(stream), _part(static_cast<std::size_t>(part)) {}

    const std::string& problem() const { return _communicator.problem(); }
    std::string name() const override { return "MPIX_Allreduce_enqueue"; }
    bool is_queued() const override { return true; }

    void sum(void* block, const Layout& layout) override {
        for_each_part(block, layout, _part,
                      [&](void* values, int count, MPI_Datatype type) { _communicator.sum(values, count, type); });
    }
    void finish() override { HIP_CHECK(hipStreamSynchronize(_stream)); }

  private:
    apps::StreamCommunicator _communicator;
    hipStream_t _stream;
    std::size_t _part;
};

/// Null where it cannot be used.
template <class Queued>
std::unique_ptr<Reduction> usable(std::unique_ptr<Queued> reduction, std::string& why_not) {
    why_not = reduction->problem();
    return why_not.empty() ? std::move(reduction) : nullptr;
}

}  // namespace

std::unique_ptr<Reduction> make_reduction(Way way, long long part, hipStream_t stream, std::string& why_not) {
    if (way == Way::enqueue) {
        return usable(std::make_unique<QueuedReduction>(stream, part), why_not);
    }
    if (way != Way::ccl) {
        return std::make_unique<MpiReduction>(way, part);
    }
    if (stream == nullptr) {
        why_not = "NCCL and RCCL need a GPU";
        return nullptr;
    }
    return usable(std::make_unique<CclReduction>(stream), why_not);
}

}  // namespace xtx
