// SPDX-License-Identifier: Apache-2.0
// Collective benchmarks: blocking, nonblocking with overlap, and persistent. What a collective moves is in
// collective_plan.cpp; here is how it is run, timed and checked, once for all of them.
//
// Timing is that of the OSU micro-benchmarks, so that figures agree: each call is timed on its own, a barrier outside
// the timed region follows each, a rank's result is the mean, and the printed ones are mean, minimum and maximum over
// ranks.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/memory.h"
#include "mpi/benchmark.h"
#include "mpi/clock.h"
#include "mpi/collective_compute.h"
#include "mpi/collective_data.h"
#include "mpi/collective_plan.h"
#include "mpi/collective_topology.h"
#include "mpi/collective_type.h"
#include "mpi/mpi_functions.h"
#include "mpi/replay.h"
#include "mpi/sampling.h"

namespace awaken::bench {
namespace {

/// Calls in flight in queued mode, as long as what they hold fits the limit of -M.
constexpr std::size_t kQueueLength = 64;
/// Room that is made before measuring, since a rank that makes it meanwhile comes late to its next call. Whoever asks
/// for more iterations than these may end them at any time, and is not to be refused for want of memory.
constexpr std::size_t kReservedSamples = std::size_t{1} << 24;

/// Persistent requests, freed whatever happens.
class PersistentCalls {
  public:
    PersistentCalls(Communication& with, std::size_t count) : operations(count), _with(with) {}
    ~PersistentCalls() noexcept(false) {
        if (_initialized) {
            _with.release(operations);
        }
    }
    PersistentCalls(const PersistentCalls&) = delete;
    PersistentCalls& operator=(const PersistentCalls&) = delete;

    void initialize(std::size_t index, const CollectiveCall& call) {
        _with.initialize(operations, index, call);
        _initialized = true;
    }

    Operations operations;

  private:
    Communication& _with;
    bool _initialized = false;
};

class CollectiveBenchmark : public Benchmark {
  public:
    explicit CollectiveBenchmark(const Environment& environment)
        : _environment(environment),
          _kind(collective_kind(environment.test.collective)),
          _type(environment.test.reduction ? ElementType::int_ : ElementType::char_) {
        const Options& options = environment.options;
        if (environment.test.rooted && !options.rotate_root &&
            (options.root < 0 || options.root >= environment.ranks)) {
            throw Error(
                "-k fixed:" + std::to_string(options.root) + " names no rank of " + std::to_string(environment.ranks),
                "choose a root from 0 to " + std::to_string(environment.ranks - 1) + ", or -k rotate");
        }
        if (environment.test.reduction && options.derived_type) {
            throw Error("the sum of a derived type (-D) is not defined in MPI", "leave -D out for reductions");
        }
        if (environment.test.neighborhood) {
            _topology = std::make_unique<Topology>(environment);
        }
        if (environment.test.family == Family::nonblocking_collective) {
            _compute = std::make_unique<OverlapCompute>(environment);
        }
    }

    void describe(HeaderFacts& facts) override {
        if (!_topology) {
            return;
        }
        facts.dimensions = _topology->dimensions();
        facts.topology_us = _topology->creation_us();
    }
    void set_type(ElementType type) override { _type = type; }

    [[nodiscard]] bool resize(std::size_t size) override {
        const Options& options = _environment.options;
        const std::size_t width = size_of(_type);
        const std::size_t elements = _environment.test.sized ? size / width : 0;
        if (_environment.test.sized && (elements == 0 || !fits_memory_limit(size))) {
            return false;
        }

        // Buffers go before new ones come: at the largest sizes both would not fit.
        _send.reset();
        _receive.reset();
        _message = std::make_unique<MessageType>(_type, options.derived_type, elements);
        _elements = _message->span();

        const int me = _environment.rank;
        const int other = (me + 1) % _environment.ranks;
        const bool may_be_root = !_environment.test.rooted || options.rotate_root || options.root == me;
        const bool may_be_other = _environment.test.rooted && (options.rotate_root || options.root != me);
        std::size_t send_elements = 0, receive_elements = 0;
        bool sends = false, receives = false;
        const auto provide_for = [&](int root) {
            const Plan plan = make_plan(_kind, participant(root), options.in_place);
            send_elements = std::max(send_elements, plan.send_elements);
            receive_elements = std::max(receive_elements, plan.receive_elements);
            sends = sends || (!plan.send_in_place && !plan.send_blocks.empty());
            receives = receives || (!plan.receive_in_place && !plan.receive_blocks.empty());
        };
        if (may_be_root) {
            provide_for(me);
        }
        if (may_be_other) {
            provide_for(other);
        }

        const RankBuffers kinds = buffers_of_rank(options, _environment.test, me);
        const auto allocate = [&](std::unique_ptr<Buffer>& buffer, BufferChoice choice, std::size_t count) {
            // An address is needed even where a rank's share is empty.
            const std::size_t bytes = std::max(count, std::size_t{1}) * width;
            buffer = std::make_unique<Buffer>(_environment.gpu, _environment.device, choice, bytes,
                                              options.unaligned ? width : 0);
            // Touches all pages, and keeps sums of whatever lies there from being infinities.
            buffer->fill(std::byte{1});
        };
        if (sends) {
            allocate(_send, kinds.send, send_elements);
        }
        if (receives) {
            allocate(_receive, kinds.receive, receive_elements);
        }
        if (may_be_root) {
            _call_as_root = make_call(me);
        }
        if (may_be_other) {
            _call_as_other = make_call(other);
        }
        return true;
    }

    [[nodiscard]] std::vector<const Buffer*> buffers() const override {
        std::vector<const Buffer*> all;
        if (_send) {
            all.push_back(_send.get());
        }
        if (_receive) {
            all.push_back(_receive.get());
        }
        return all;
    }

    void run(Communication& with, Mode mode, std::size_t iterations, Samples& samples) override {
        samples.operation.reserve(std::min(samples.operation.size() + iterations, kReservedSamples));
        barrier();
        const Family family = _environment.test.family;
        if (mode == Mode::queued && family != Family::collective) {
            throw Unavailable("calls cannot be queued in tests of nonblocking and persistent collectives",
                              "use --mode queued with the blocking form of the test");
        }
        if (mode == Mode::queued) {
            run_queued(with, iterations, samples);
        } else if (family == Family::nonblocking_collective) {
            run_nonblocking(with, iterations, samples);
        } else if (family == Family::persistent_collective) {
            run_persistent(with, iterations, samples);
        } else {
            run_blocking(with, iterations, samples);
        }
        barrier();
    }

    [[nodiscard]] Mismatch check(Communication& with, Mode mode, std::uint64_t iteration, bool corrupt) override {
        Calls calls(*this, with);
        if (!_environment.test.sized) {
            return check_barrier(calls, mode, iteration, corrupt);
        }
        const Plan plan = make_plan(_kind, participant(root_of(iteration)), _environment.options.in_place);
        const DataFacts facts{_type, _environment.ranks, iteration};
        if (_send) {
            write_data(*_send, plan.send, facts);
        }
        if (_receive) {
            write_data(*_receive, plan.receive_before, facts);
        }
        call_once(calls, mode, iteration);
        if (corrupt) {
            damage(plan);
        }

        Mismatch mismatch;
        const std::size_t width = size_of(_type);
        if (_receive) {
            mismatch = compare_data(*_receive, _receive->size() / width, plan.receive_before, plan.receive_after,
                                    *_message, facts, "receive buffer");
        }
        if (_send) {
            mismatch.add(compare_data(*_send, _send->size() / width, plan.send, {}, *_message, facts, "send buffer"));
        }
        return mismatch;
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        const double iterations = static_cast<double>(std::max<std::size_t>(samples.iterations, 1));
        const auto mean_us = [&](double seconds) { return seconds * 1e6 / iterations; };
        const auto reduce = [&](double value, MPI_Op operation) {
            return over_ranks_at_root(value, operation, _environment.communicator);
        };
        const auto mean_over_ranks = [&](double value) { return reduce(value, MPI_SUM) / _environment.ranks; };

        const double latency = mean_us(samples.total);
        measurement.iterations = samples.iterations;
        measurement.iterations_per_sample = samples.iterations_per_sample;
        measurement.average = mean_over_ranks(latency);
        measurement.minimum = reduce(latency, MPI_MIN);
        measurement.maximum = reduce(latency, MPI_MAX);
        if (_environment.options.derived_type) {
            measurement.transmit_size = _message->transmitted() * size_of(_type);
        }

        if (_environment.test.family == Family::nonblocking_collective) {
            OverlapTimes times;
            times.overall = measurement.average;
            times.initiate = mean_over_ranks(mean_us(samples.initiate));
            times.test = mean_over_ranks(mean_us(samples.test));
            times.wait = mean_over_ranks(mean_us(samples.wait));
            times.compute = mean_over_ranks(mean_us(samples.compute)) - times.test;
            times.pure = mean_over_ranks(mean_us(samples.pure));
            times.pure_minimum = reduce(mean_us(samples.pure), MPI_MIN);
            times.pure_maximum = reduce(mean_us(samples.pure), MPI_MAX);
            if (times.pure > 0) {
                times.overlap_percent = std::max(0.0, 100 - (times.overall - times.compute) / times.pure * 100);
            }
            measurement.overlap = times;
        }

        measurement.samples = slowest_of_ranks(samples.operation, _environment.communicator);
        // OMB's percentiles are of each iteration's mean over ranks.
        const std::vector<int>& percentiles = _environment.options.percentiles;
        if (percentiles.empty() || samples.operation.empty()) {
            return;
        }
        const bool overlaps = _environment.test.family == Family::nonblocking_collective;
        std::vector<double> means = overlaps ? samples.overlapped : samples.operation;
        for (double& value : means) {
            value *= 1e6 / _environment.ranks;
        }
        std::vector<double> sums(means.size());
        check_mpi(MPI_Reduce(means.data(), sums.data(), static_cast<int>(means.size()), MPI_DOUBLE, MPI_SUM, 0,
                             _environment.communicator),
                  "MPI_Reduce");
        for (const int p : percentiles) {
            measurement.percentiles.push_back(tail_percentile(sums, p));
        }
    }

  private:
    [[nodiscard]] bool fits_memory_limit(std::size_t size) {
        const std::size_t messages = _kind.one_message ? 1 : static_cast<std::size_t>(_environment.ranks);
        const std::size_t limit = _environment.options.memory_limit / messages;
        if (size <= limit) {
            return true;
        }
        if (!_warned && _environment.rank == 0 && !_environment.options.quiet_notes) {
            std::fprintf(
                stderr,
                "awaken bench: sizes above %zu bytes are left out: %zu ranks' messages would take more than -M allows "
                "(%zu bytes); raise it with -M BYTES\n",
                limit, messages, _environment.options.memory_limit);
        }
        _warned = true;
        return false;
    }

    [[nodiscard]] Participant participant(int root) const {
        return {_environment.rank, _environment.ranks, root, _elements, _topology ? &_topology->neighbors() : nullptr};
    }

    [[nodiscard]] CollectiveCall make_call(int root) const {
        const Plan plan = make_plan(_kind, participant(root), _environment.options.in_place);
        CollectiveCall call;
        call.collective = _environment.test.collective;
        call.communicator = _topology ? _topology->communicator() : _environment.communicator;
        call.root = root;
        if (_environment.test.reduction) {
            call.operation = MPI_SUM;
        }
        call.send_type = call.receive_type = _message->handle();

        const auto count_of = [&](std::size_t elements) {
            return _message->derived() ? Count{1} : static_cast<Count>(elements);
        };
        const bool in_bytes =
            call.collective == Collective::alltoallw || call.collective == Collective::neighbor_alltoallw;
        const std::size_t width = size_of(_type);
        const auto describe_side = [&](const std::vector<std::size_t>& blocks, Count& count, std::vector<Count>& counts,
                                       std::vector<MPI_Aint>& displacements, std::vector<MPI_Datatype>& types) {
            count = count_of(blocks.empty() ? _elements : blocks.front());
            std::size_t first = 0;
            for (std::size_t i = 0; i < blocks.size(); ++i) {
                counts.push_back(count_of(blocks[i]));
                // Displacements are multiples of the type's extent, which for a derived type is a whole message.
                displacements.push_back(
                    static_cast<MPI_Aint>(in_bytes ? first * width : (_message->derived() ? i : first)));
                first += blocks[i];
            }
            types.assign(blocks.size(), _message->handle());
        };
        describe_side(plan.send_blocks, call.send_count, call.send_counts, call.send_displacements, call.send_types);
        describe_side(plan.receive_blocks, call.receive_count, call.receive_counts, call.receive_displacements,
                      call.receive_types);

        if (call.collective == Collective::bcast) {
            // One buffer, whichever side it is on.
            const bool is_root = root == _environment.rank;
            call.receive = is_root ? _send->data() : _receive->data();
            call.send = call.receive;
        } else {
            call.send = plan.send_in_place ? MPI_IN_PLACE : (_send ? _send->data() : nullptr);
            call.receive = plan.receive_in_place ? MPI_IN_PLACE : (_receive ? _receive->data() : nullptr);
        }
        return call;
    }

    [[nodiscard]] const CollectiveCall& call_of(std::size_t iteration) {
        const int root = root_of(iteration);
        CollectiveCall& call = root == _environment.rank ? _call_as_root : _call_as_other;
        call.root = root;
        return call;
    }

    [[nodiscard]] int root_of(std::uint64_t iteration) const {
        if (!_environment.test.rooted) {
            return _environment.rank;
        }
        if (!_environment.options.rotate_root) {
            return _environment.options.root;
        }
        return static_cast<int>(iteration % static_cast<std::uint64_t>(_environment.ranks));
    }

    [[nodiscard]] std::size_t queue_length(std::size_t iterations) const {
        std::size_t bytes = 1;
        for (const Buffer* const buffer : buffers()) {
            bytes += buffer->size();
        }
        // What an implementation holds for an operation under way is of the size of its buffers. Ranks have buffers of
        // different sizes and must agree.
        const unsigned long long largest = over_ranks<unsigned long long>(bytes, MPI_MAX, _environment.communicator);
        const std::size_t affordable = std::max<std::size_t>(_environment.options.memory_limit / largest, 2);
        return std::max<std::size_t>(std::min({kQueueLength, affordable, iterations}), 1);
    }

    /// The calls of iterations. Where the contender is replayed, each is a launch of a graph, of which there is one for
    /// each root.
    class Calls {
      public:
        Calls(CollectiveBenchmark& of, Communication& given) : with(given), _of(of) {
            const bool rotates = of._environment.test.rooted && of._environment.options.rotate_root;
            const auto roots = static_cast<std::size_t>(rotates ? of._environment.ranks : 1);
            for (std::size_t root = 0; with.is_replayed() && root < roots; ++root) {
                const auto call = [this, root] { with.start(_operations, 0, _of.call_of(root)); };
                _graphs.push_back(std::make_unique<Replay>(of._environment, with, call));
                run(root);  // the first launch costs more than the next ones, which are timed and checked
            }
        }
        void run(std::size_t iteration) {
            if (_graphs.empty()) {
                with.run(_of.call_of(iteration));
            } else {
                graph(iteration).launch();
                with.wait(_operations, 0, 1);
            }
        }
        void start(Operations& operations, std::size_t index, std::size_t iteration) {
            if (_graphs.empty()) {
                _of.begin(with, operations, index, _of.call_of(iteration));
            } else {
                graph(iteration).launch();
            }
        }

        Communication& with;

      private:
        [[nodiscard]] const Replay& graph(std::size_t iteration) const { return *_graphs[iteration % _graphs.size()]; }

        CollectiveBenchmark& _of;
        Operations _operations{1};
        std::vector<std::unique_ptr<Replay>> _graphs;
    };

    // ---- the loops ------------------------------------------------------------------------------------------------

    void run_blocking(Communication& with, std::size_t iterations, Samples& samples) {
        Calls calls(*this, with);
        for (std::size_t i = 0; i < iterations; ++i) {
            const double taken = seconds_of([&] { calls.run(samples.iterations); });
            separate();
            samples.add(taken, 1);
            ++samples.iterations;
        }
    }

    // Calls are started back to back and waited for together, all on the same buffers, as the windows of bandwidth
    // tests are: results are not looked at here.
    void run_queued(Communication& with, std::size_t iterations, Samples& samples) {
        const std::size_t length = queue_length(iterations);
        Operations operations(length);
        Calls calls(*this, with);
        // The last of a fixed number of iterations may be a shorter block.
        if (samples.operation.empty()) {
            samples.iterations_per_sample = length;
        }
        for (std::size_t done = 0; done < iterations; done += length) {
            const double taken = seconds_of([&] {
                for (std::size_t i = 0; i < length; ++i) {
                    calls.start(operations, i, samples.iterations + i);
                }
                with.wait(operations, 0, length);
            });
            barrier();
            samples.add(taken, static_cast<double>(length));
            samples.iterations += length;
        }
    }

    /// Operations that a call consists of.
    [[nodiscard]] std::size_t parts() const { return _kind.collective == Collective::ring_shift ? 2 : 1; }

    void begin(Communication& with, Operations& operations, std::size_t index, const CollectiveCall& call) const {
        if (_kind.collective != Collective::ring_shift) {
            with.start(operations, index, call);
            return;
        }
        constexpr int kTag = 1;
        const int ranks = _environment.ranks;
        const int me = _environment.rank;
        with.start(operations, index,
                   MessageCall{Direction::receive, call.receive, call.receive_count, call.receive_type,
                               (me + ranks - 1) % ranks, kTag, call.communicator});
        with.start(operations, index + 1,
                   MessageCall{Direction::send, const_cast<void*>(call.send), call.send_count, call.send_type,
                               (me + 1) % ranks, kTag, call.communicator});
    }

    // First the communication alone, then again with a computation of the same length between start and wait.
    void run_nonblocking(Communication& with, std::size_t iterations, Samples& samples) {
        Operations operations(parts());
        for (std::size_t i = 0; i < iterations; ++i) {
            const CollectiveCall& call = call_of(samples.iterations + i);
            const double taken = seconds_of([&] {
                begin(with, operations, 0, call);
                with.wait(operations, 0, parts());
            });
            separate();
            samples.operation.push_back(taken);
            samples.pure += taken;
        }
        barrier();
        _compute->set_duration(samples.pure / static_cast<double>(samples.iterations + iterations));
        barrier();
        for (std::size_t i = 0; i < iterations; ++i) {
            const CollectiveCall& call = call_of(samples.iterations);
            const double start = now();
            begin(with, operations, 0, call);
            const double started = now();
            samples.test += _compute->run(with, operations);
            const double computed = now();
            with.wait(operations, 0, parts());
            const double end = now();
            barrier();
            samples.initiate += started - start;
            samples.compute += computed - started;
            samples.wait += end - computed;
            samples.overall += end - start;
            samples.total += end - start;
            if (!_environment.options.percentiles.empty()) {
                samples.overlapped.push_back(end - start);
            }
            ++samples.iterations;
        }
    }

    void run_persistent(Communication& with, std::size_t iterations, Samples& samples) {
        // A rotating root needs a request for each rank that it comes to.
        const bool rotates = _environment.test.rooted && _environment.options.rotate_root;
        const std::size_t requests =
            rotates ? std::max<std::size_t>(static_cast<std::size_t>(_environment.ranks), 1) : 1;
        PersistentCalls calls(with, requests);
        for (std::size_t i = 0; i < requests; ++i) {
            calls.initialize(i, call_of(i));
        }
        barrier();
        for (std::size_t i = 0; i < iterations; ++i) {
            const std::size_t index = samples.iterations % requests;
            const double taken = seconds_of([&] {
                with.restart(calls.operations, index, 1);
                with.wait(calls.operations, index, 1);
            });
            separate();
            samples.add(taken, 1);
            ++samples.iterations;
        }
    }

    // ---- the check ------------------------------------------------------------------------------------------------

    void call_once(Calls& calls, Mode mode, std::size_t iteration) {
        const Family family = _environment.test.family;
        if (mode == Mode::queued || family == Family::nonblocking_collective) {
            Operations operations(parts());
            calls.start(operations, 0, iteration);
            calls.with.wait(operations, 0, parts());
        } else if (family == Family::persistent_collective) {
            PersistentCalls persistent(calls.with, 1);
            persistent.initialize(0, call_of(iteration));
            calls.with.restart(persistent.operations, 0, 1);
            calls.with.wait(persistent.operations, 0, 1);
        } else {
            calls.run(iteration);
        }
    }

    /// A barrier moves no data. What it promises is that nobody leaves before all have come: one rank comes late, and
    /// the clock that the ranks of a node share says whether the others have left before.
    [[nodiscard]] Mismatch check_barrier(Calls& calls, Mode mode, std::uint64_t iteration, bool corrupt) {
        constexpr double kLateness = 200e-6;  // seconds
        MPI_Comm node = MPI_COMM_NULL;
        check_mpi(MPI_Comm_split_type(_environment.communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
                  "MPI_Comm_split_type");
        barrier();
        const auto late = static_cast<int>(iteration % static_cast<std::uint64_t>(_environment.ranks));
        if (_environment.rank == late) {
            for (const double end = now() + kLateness; now() < end;) {
            }
        }
        const double entered = now();
        call_once(calls, mode, iteration);
        double left = now();
        if (corrupt && _environment.rank == 0) {
            left = entered - 2 * kLateness;
        }

        const double last_entered = over_ranks(entered, MPI_MAX, node);
        check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
        if (left >= last_entered) {
            return {};
        }
        char text[96];
        std::snprintf(text, sizeof text, "a rank left the barrier %.1f us before the last rank entered it",
                      (last_entered - left) * 1e6);
        return {1, text};
    }

    /// Changes one byte on one rank: of what it received, or of a buffer that had to stay as it was when nobody
    /// received anything (fewer elements than ranks).
    void damage(const Plan& plan) {
        const auto specified = std::find_if(
            plan.receive_after.begin(), plan.receive_after.end(),
            [](const Region& region) { return region.content != Region::Content::unspecified && region.count != 0; });
        const bool received = specified != plan.receive_after.end();
        const int victim = over_ranks(received ? _environment.rank : -1, MPI_MAX, _environment.communicator);
        if (_environment.rank != std::max(victim, 0)) {
            return;
        }
        Buffer& buffer = _receive ? *_receive : *_send;
        const std::size_t offset = received ? specified->first * size_of(_type) : 0;
        std::byte value[1];
        buffer.read(value, offset);
        value[0] ^= std::byte{0xff};
        buffer.write(value, offset);
    }

    void barrier() { bench::barrier(_environment.communicator); }
    /// After a call that was timed, as OMB does; a barrier is not followed by another one.
    void separate() {
        if (_environment.test.sized) {
            barrier();
        }
    }

    const Environment _environment;
    const CollectiveKind& _kind;
    std::unique_ptr<Topology> _topology;       // of neighbourhood collectives
    std::unique_ptr<OverlapCompute> _compute;  // of nonblocking ones
    ElementType _type;
    bool _warned = false;

    // Of the present size.
    std::unique_ptr<MessageType> _message;
    std::size_t _elements = 0;                ///< of a message, gaps included
    std::unique_ptr<Buffer> _send, _receive;  // null where this rank needs none
    CollectiveCall _call_as_root, _call_as_other;
};

}  // namespace

std::unique_ptr<Benchmark> make_collective(const Environment& environment) {
    return std::make_unique<CollectiveBenchmark>(environment);
}

}  // namespace awaken::bench
