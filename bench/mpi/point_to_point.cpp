// SPDX-License-Identifier: Apache-2.0
// Point-to-point benchmarks: who sends what to whom, in which order, and what is timed. Loops and formulas are those of
// the OSU micro-benchmarks 7.4, so that values can be compared; where theirs reads the clock for each message, ours
// reads it for a batch that is long enough for the clock not to weigh.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/printable.h"
#include "mpi/benchmark.h"
#include "mpi/clock.h"
#include "mpi/collective_type.h"
#include "mpi/engine.h"
#include "mpi/mpi_functions.h"
#include "mpi/sampling.h"

namespace awaken::bench {
namespace {

// Tags as in the OSU micro-benchmarks, for those who read traces of both.
constexpr int kPingTag = 1;
constexpr int kDataTag = 100;
constexpr int kBackTag = 10;
constexpr int kAnswerTag = 101;

constexpr Direction opposite(const Direction direction) noexcept {
    return direction == Direction::send ? Direction::receive : Direction::send;
}

/// What is common to all: pairs, buffers, types, the check.
class PointToPoint : public Benchmark {
  public:
    explicit PointToPoint(const Environment& environment, const int messages, const bool multiple)
        : _environment(environment),
          _pairs(std::min(environment.options.pairs.value_or(environment.ranks / 2), environment.ranks / 2)),
          _partner(rank() < _pairs       ? rank() + _pairs
                   : rank() < 2 * _pairs ? rank() - _pairs
                                         : -1),
          _copies(multiple ? messages : 1),
          _batches(!environment.options.percentiles.empty()) {}

    void set_type(const ElementType type) override { _element = type; }

    [[nodiscard]] bool resize(const std::size_t size) override {
        _send.clear();
        _receive.clear();
        _batches.forget();
        _size = size;
        const std::size_t element = size_of(_element);
        if (size / element == 0) {
            return false;
        }
        const auto& options = _environment.options;
        _message.emplace(_element, options.derived_type, size / element);
        const RankBuffers choice = buffers_of_rank(options, _environment.test, _environment.rank, _environment.ranks);
        const std::size_t offset = options.unaligned ? element : 0;
        const std::size_t bytes = span();
        for (int i = 0; takes_part() && i < _copies; ++i) {
            _send.emplace_back(_environment.gpu, _environment.device, choice.send, bytes, offset);
            _receive.emplace_back(_environment.gpu, _environment.device, choice.receive, bytes, offset);
        }
        return true;
    }

    [[nodiscard]] bool moves_data() const override { return span() != 0; }

    [[nodiscard]] std::vector<const Buffer*> buffers() const override {
        std::vector<const Buffer*> all;
        for (const auto* const side : {&_send, &_receive}) {
            for (const Buffer& buffer : *side) {
                all.push_back(&buffer);
            }
        }
        return all;
    }

    [[nodiscard]] Mismatch check(Communication& with, const Mode /* mode */, const std::uint64_t iteration,
                                 const bool corrupt) override {
        Mismatch mismatch;
        const bool damage_here = corrupt && _environment.rank == rank_to_damage();
        const std::vector<int> from = sources();
        const std::vector<int> to = destinations();
        // One peer after the other, because several may share a buffer; all messages of a peer at once.
        const std::size_t rounds = std::max(from.size(), to.size());
        for (std::size_t round = 0; round < rounds; ++round) {
            const int source = round < from.size() ? from[round] : -1;
            const int destination = round < to.size() ? to[round] : -1;
            for (std::size_t copy = 0; copy < _send.size(); ++copy) {
                if (destination >= 0) {
                    write_pattern(_send[copy], _environment.rank, destination, iteration + copy);
                }
                if (source >= 0) {
                    _receive[copy].fill(kUntouched);
                }
            }
            exchange(with, source, destination);
            if (source >= 0 && damage_here && round == 0) {
                _receive.front().damage_data();
            }
            for (std::size_t copy = 0; copy < _send.size(); ++copy) {
                if (source >= 0) {
                    mismatch.add(compare_pattern(_receive[copy], source, _environment.rank, iteration + copy));
                }
                if (destination >= 0) {
                    Mismatch changed = compare_pattern(_send[copy], _environment.rank, destination, iteration + copy);
                    if (changed.wrong_elements != 0) {
                        changed.first += " in the send buffer";
                    }
                    mismatch.add(changed);
                }
            }
        }
        return mismatch;
    }

  protected:
    /// The ranks that this rank receives from and sends to; both lists are walked in step by all ranks.
    [[nodiscard]] virtual std::vector<int> sources() const {
        return takes_part() ? std::vector<int>{_partner} : std::vector<int>{};
    }
    [[nodiscard]] virtual std::vector<int> destinations() const { return sources(); }
    /// False for ranks that are left over.
    [[nodiscard]] virtual bool takes_part() const { return _partner >= 0; }
    /// Moves all messages between this rank and its peers of one round of the check once, by the functions that are
    /// timed: what is checked must be what is measured. -1: no peer on that side.
    virtual void exchange(Communication& with, int source, int destination) = 0;

    /// The pairs of ranks that move messages, one of the lower and one of the upper half each.
    [[nodiscard]] int pairs() const noexcept { return _pairs; }
    [[nodiscard]] int partner() const noexcept { return _partner; }
    [[nodiscard]] bool is_lower() const noexcept { return rank() < _pairs; }

    /// `message`: its number among those under way, which may share a buffer.
    [[nodiscard]] MessageCall call(const Direction direction, const int message, const int peer, const int tag) {
        std::vector<Buffer>& buffers = direction == Direction::send ? _send : _receive;
        return {direction,
                buffers[static_cast<std::size_t>(message % _copies)].data(),
                _message->derived() ? 1 : static_cast<Count>(_message->span()),
                _message->handle(),
                peer,
                tag,
                _environment.communicator};
    }
    /// Bytes that a message moves: what bandwidths are made of.
    [[nodiscard]] double moved() const noexcept { return static_cast<double>(payload()); }
    [[nodiscard]] const Environment& environment() const noexcept { return _environment; }
    [[nodiscard]] int rank() const noexcept { return _environment.rank; }

    [[nodiscard]] Batches& batches() noexcept { return _batches; }

    /// The receiver fetches `messages` at a time: one way, as half a round trip is. `ways`: as if there and back.
    void pull_raw(RawCopy& raw, const std::size_t iterations, Samples& samples, const int messages, const double ways,
                  const char* const why_two) {
        if (_environment.ranks != 2) {
            throw Unavailable(why_two, "use two ranks");
        }
        prepare_raw(raw);
        barrier(_environment.communicator);
        for (std::size_t i = 0; rank() == 1 && i < iterations; ++i) {
            samples.add(ways * seconds_of([&] { pull(raw, messages); }), ways * messages);
        }
        samples.iterations += iterations;
        barrier(_environment.communicator);
    }
    void prepare_raw(RawCopy& raw) { raw.prepare(_environment.communicator, _send.front(), _receive.front()); }
    void pull(RawCopy& raw, const int messages) const { raw.pull(_partner, _size, static_cast<std::size_t>(messages)); }

    static void refuse_queue(const Mode mode, const char* const reason) {
        if (mode == Mode::queued) {
            throw Unavailable(reason, "use --mode waited");
        }
    }

    void fill_transmit_size(Measurement& measurement) const {
        measurement.transmit_size = _message->derived() ? payload() : 0;
    }

  private:
    [[nodiscard]] std::size_t span() const noexcept { return _message->span() * size_of(_element); }
    /// Without a derived type the size itself, as in the OSU micro-benchmarks, also where it is no whole number of
    /// elements.
    [[nodiscard]] std::size_t payload() const noexcept {
        return _message->derived() ? _message->transmitted() * size_of(_element) : _size;
    }

    [[nodiscard]] int rank_to_damage() const {
        // Preferably not rank 0, so that the test also shows that findings of other ranks arrive.
        const int mine = sources().empty() ? INT_MAX : rank() == 0 ? INT_MAX - 1 : rank();
        const int lowest = over_ranks(mine, MPI_MIN, _environment.communicator);
        return lowest == INT_MAX - 1 ? 0 : lowest;
    }

    void write_pattern(Buffer& buffer, const int source, const int destination, const std::uint64_t iteration) {
        std::vector<std::byte> piece;
        for_each_piece(span(), [&](const std::size_t first, const std::size_t bytes) {
            piece.resize(bytes);
            fill_pattern(piece, _element, stream_of(source, destination), iteration, first / size_of(_element));
            buffer.write(piece, first);
        });
    }

    [[nodiscard]] Mismatch compare_pattern(const Buffer& buffer, const int source, const int destination,
                                           const std::uint64_t iteration) const {
        const std::size_t width = size_of(_element);
        Mismatch all;
        std::vector<std::byte> actual, expected;
        for_each_piece(span(), [&](const std::size_t first, const std::size_t bytes) {
            actual.resize(bytes);
            expected.resize(bytes);
            buffer.read(actual, first);
            fill_pattern(expected, _element, stream_of(source, destination), iteration, first / width);
            if (_message->derived() && destination == rank()) {
                std::vector<std::byte> with_gaps(bytes, kUntouched);
                _message->copy_transmitted(expected, with_gaps, first / width, width);
                expected = std::move(with_gaps);
            }
            all.add(compare(actual, expected, _element, first / width));
        });
        return all;
    }

    const Environment& _environment;
    const int _pairs;
    const int _partner;  ///< -1: none
    const int _copies;   ///< buffers per side
    ElementType _element = ElementType::char_;
    std::size_t _size = 0;
    std::optional<MessageType> _message;
    std::vector<Buffer> _send, _receive;
    Batches _batches;
};

// ---- latency -------------------------------------------------------------------------------------------------------

/// Ping-pong between the lower and the upper half of the ranks: latency, multi_lat, latency_mp.
class Latency : public PointToPoint {
  public:
    explicit Latency(const Environment& environment) : PointToPoint(environment, 1, false) {}

    void describe(HeaderFacts& facts) override { facts.pairs = pairs(); }

    void run(Communication& with, const Mode mode, const std::size_t iterations, Samples& samples) override {
        refuse_queue(mode, "in a ping-pong each message waits for the one before");
        barrier(environment().communicator);
        if (barrier_each_time()) {
            run_apart(with, iterations, samples);
        } else if (takes_part()) {
            run_batches(with, iterations, samples, [&] { round_trip(with); });
        }
        samples.iterations += iterations;
    }

    void run_raw(RawCopy& raw, const std::size_t iterations, Samples& samples) override {
        pull_raw(raw, iterations, samples, 1, 2, "a raw copy moves one message between two ranks");
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        MPI_Comm communicator = environment().communicator;
        const double total = over_ranks_at_root(samples.total, MPI_SUM, communicator) / pairs();
        measurement.iterations = samples.iterations;
        measurement.iterations_per_sample = largest_of_ranks(samples.iterations_per_sample, communicator);
        measurement.average = total * 1e6 / (2.0 * static_cast<double>(samples.iterations));
        measurement.samples = slowest_of_ranks(samples.operation, communicator);
        fill_transmit_size(measurement);
    }

  protected:
    /// The lower rank of a pair takes the time.
    template <typename RoundTrip>
    void run_batches(Communication& with, const std::size_t iterations, Samples& samples, const RoundTrip& trip) {
        if (is_lower()) {
            batches().run(with, iterations, 2, samples, trip);
            return;
        }
        for (std::size_t i = 0; i < iterations; ++i) {
            trip();
        }
    }
    /// Pairs start each round trip together; so do the ranks of latency_mp.
    [[nodiscard]] virtual bool barrier_each_time() const {
        return environment().test.family == Family::multiple_latency;
    }

    void exchange(Communication& with, const int /* source */, const int /* destination */) override {
        round_trip(with);
    }

  private:
    void round_trip(Communication& with) {
        const Direction first = is_lower() ? Direction::send : Direction::receive;
        with.run(call(first, 0, partner(), kPingTag));
        with.run(call(opposite(first), 0, partner(), kPingTag));
    }

    void run_apart(Communication& with, const std::size_t iterations, Samples& samples) {
        for (std::size_t i = 0; i < iterations; ++i) {
            barrier(environment().communicator);
            if (!takes_part()) {
                continue;
            }
            const double seconds = seconds_of([&] { round_trip(with); });
            if (is_lower()) {
                samples.add(seconds, 2);
            }
        }
    }
};

class PersistentLatency : public Latency {
  public:
    using Latency::Latency;

    void run(Communication& with, const Mode mode, const std::size_t iterations, Samples& samples) override {
        refuse_queue(mode, "in a ping-pong each message waits for the one before");
        Operations operations(2);
        initialize(with, operations);
        barrier(environment().communicator);
        run_batches(with, iterations, samples, [&] { round_trip(with, operations); });
        samples.iterations += iterations;
        with.release(operations);
    }

  protected:
    void exchange(Communication& with, const int /* source */, const int /* destination */) override {
        Operations operations(2);
        initialize(with, operations);
        round_trip(with, operations);
        with.release(operations);
    }

    virtual void initialize(Communication& with, Operations& operations) {
        with.initialize(operations, kSend, call(Direction::send, 0, partner(), kPingTag));
        with.initialize(operations, kReceive, call(Direction::receive, 0, partner(), kPingTag));
    }

    /// Between the start of a send and waiting for it.
    virtual void started(Communication&, Operations&) const {}

  private:
    void round_trip(Communication& with, Operations& operations) const {
        const std::size_t first = rank() == 0 ? kSend : kReceive;
        for (const std::size_t one : {first, kReceive - first}) {
            with.restart(operations, one, 1);
            if (one == kSend) {
                started(with, operations);
            }
            with.wait(operations, one, 1);
        }
    }

  protected:
    static constexpr std::size_t kSend = 0;
    static constexpr std::size_t kReceive = 1;
};

/// partitioned_latency: the parts of each message are made ready one by one, as threads or kernels that fill them would
/// do.
class PartitionedLatency final : public PersistentLatency {
  public:
    using PersistentLatency::PersistentLatency;

  protected:
    void initialize(Communication& with, Operations& operations) override {
        for (const auto& [index, direction] :
             {std::pair(kSend, Direction::send), std::pair(kReceive, Direction::receive)}) {
            MessageCall part = call(direction, 0, partner(), kPingTag);
            _partitions = most_partitions(part.count);
            part.count /= _partitions;
            with.initialize_partitioned(operations, index, part, _partitions);
        }
    }

    void started(Communication& with, Operations& operations) const override {
        with.make_ready(operations, kSend, _partitions);
    }

  private:
    /// Both sides have as many, and all are alike.
    [[nodiscard]] int most_partitions(const Count count) const {
        Count most = std::min<Count>(environment().options.partitions, std::max<Count>(count, 1));
        while (count % most != 0) {
            --most;
        }
        return static_cast<int>(most);
    }

    int _partitions = 1;
};

/// Processes that are there and do nothing, as the forked ones of latency_mp: they wait for the end of their parent's
/// interest, or of the parent.
class IdleProcesses {
  public:
    explicit IdleProcesses(const int count) {
        int ends[2];
        if (pipe(ends) != 0) {
            throw Error(std::string("cannot make a pipe (") + std::strerror(errno) + ")",
                        "raise the limit of open files");
        }
        _wake = ends[1];
        for (int i = 0; i < count; ++i) {
            const pid_t child = fork();
            if (child == 0) {
                close(ends[1]);
                char byte = 0;
                while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
                }
                _exit(0);
            }
            if (child < 0) {
                const int reason = errno;
                close(ends[0]);
                end();
                throw Error(std::string("cannot fork a process (") + std::strerror(reason) + ")",
                            "use fewer with -t, or raise the limit of processes");
            }
            _children.push_back(child);
        }
        close(ends[0]);
    }
    ~IdleProcesses() { end(); }
    IdleProcesses(const IdleProcesses&) = delete;
    IdleProcesses& operator=(const IdleProcesses&) = delete;

  private:
    void end() noexcept {
        close(_wake);
        for (const pid_t child : _children) {
            while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
            }
        }
        _children.clear();
    }

    int _wake = -1;
    std::vector<pid_t> _children;
};

/// latency_mp: a ping-pong beside forked processes, which share the parent's memory until somebody writes to it.
class ProcessLatency final : public Latency {
  public:
    explicit ProcessLatency(const Environment& environment)
        : Latency(environment),
          _processes(rank() == 0 ? parallelism_of(environment.options, environment.test).senders
                                 : parallelism_of(environment.options, environment.test).receivers) {}

  protected:
    [[nodiscard]] bool barrier_each_time() const override { return true; }

  private:
    IdleProcesses _processes;
};

/// latency_mt: threads on both sides; message i is the affair of thread i modulo their number.
class ThreadedLatency final : public PointToPoint {
  public:
    explicit ThreadedLatency(const Environment& environment)
        : PointToPoint(environment, threads_of(environment), true),
          _parallelism(parallelism_of(environment.options, environment.test)) {
        if (environment.thread_level != MPI_THREAD_MULTIPLE) {
            throw Error(short_version() + " gives no MPI_THREAD_MULTIPLE, which latency_mt needs",
                        "use an MPI that was built with it");
        }
    }

    void run(Communication& with, const Mode mode, const std::size_t iterations, Samples& samples) override {
        refuse_queue(mode, "in a ping-pong each message waits for the one before");
        const bool sender = rank() == 0;
        const int threads = threads_here();
        std::vector<Samples> of_threads(static_cast<std::size_t>(threads));
        barrier(environment().communicator);
        on_threads([&](const int thread) {
            run_thread(with, thread, threads, iterations, of_threads[static_cast<std::size_t>(thread)]);
        });
        if (sender) {
            double means = 0;
            int busy = 0;  // a block of fewer iterations than threads leaves some without any
            for (const Samples& one : of_threads) {
                samples.operation.insert(samples.operation.end(), one.operation.begin(), one.operation.end());
                means += one.iterations == 0 ? 0 : one.total / static_cast<double>(one.iterations);
                busy += one.iterations == 0 ? 0 : 1;
            }
            samples.total += means / std::max(busy, 1) * static_cast<double>(iterations);
        }
        samples.iterations += iterations;
        samples.iterations_per_sample = 1;
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        measurement.iterations = samples.iterations;
        measurement.iterations_per_sample = 1;
        measurement.average = samples.total * 1e6 / (2.0 * static_cast<double>(samples.iterations));
        measurement.samples = slowest_of_ranks(samples.operation, environment().communicator);
        fill_transmit_size(measurement);
    }

  protected:
    /// Each message has buffers and a tag of its own here, because it must be known which of them arrives where.
    void exchange(Communication& with, const int /* source */, const int /* destination */) override {
        const int messages = threads_of(environment());
        on_threads([&](const int thread) {
            for (int message = thread; message < messages; message += threads_here()) {
                round_trip(with, message, message, message);
            }
        });
    }

  private:
    static int threads_of(const Environment& environment) {
        const Parallelism parallelism = parallelism_of(environment.options, environment.test);
        return std::max(parallelism.senders, parallelism.receivers);
    }

    [[nodiscard]] int threads_here() const noexcept {
        return rank() == 0 ? _parallelism.senders : _parallelism.receivers;
    }

    /// Calls work(thread) on all threads of this rank, and waits for them.
    template <typename Work>
    void on_threads(const Work& work) {
        std::vector<std::jthread> running;
        running.reserve(static_cast<std::size_t>(threads_here()));
        for (int thread = 0; thread < threads_here(); ++thread) {
            running.emplace_back([&, thread] {
                try {
                    use_gpu();
                    work(thread);
                } catch (const std::exception& error) {
                    // The other threads and the other rank wait for this thread's messages.
                    end_all(environment().communicator, printable_lines(error.what()));
                }
            });
        }
    }

    void use_gpu() const {
        if (environment().device >= 0) {
            const gpu::Status status = environment().gpu.make_current(environment().device);
            if (!status.ok()) {
                throw Error("a thread cannot use the GPU: " + status.message(), "see that the GPU driver works");
            }
        }
    }

    /// A message from rank 0 and its answer, from and into the buffers `place`.
    void round_trip(Communication& with, const int place, const int there, const int back) {
        const Direction first = is_lower() ? Direction::send : Direction::receive;
        with.run(call(first, place, partner(), there));
        with.run(call(opposite(first), place, partner(), back));
    }

    void run_thread(Communication& with, const int thread, const int threads, const std::size_t iterations,
                    Samples& samples) {
        // One sender and many receivers: any of them may answer. Otherwise each message has its two threads.
        const bool by_message = _parallelism.senders > 1;
        constexpr std::size_t kTags = 32768;  // what every MPI has
        for (auto i = static_cast<std::size_t>(thread); i < iterations; i += static_cast<std::size_t>(threads)) {
            const int there = by_message ? static_cast<int>(i % kTags) : 1;
            const int back = by_message ? there : 2;
            const double seconds = seconds_of([&] { round_trip(with, thread, there, back); });
            if (rank() == 0) {
                samples.add(seconds, 2);
                ++samples.iterations;
            }
        }
    }

    const Parallelism _parallelism;
};

// ---- bandwidth -----------------------------------------------------------------------------------------------------

/// One window of messages, and what answers it.
class Bandwidth : public PointToPoint {
  public:
    Bandwidth(const Environment& environment, const int window)
        : PointToPoint(environment, window, multiple_buffers(environment)), _window(window) {}

    void describe(HeaderFacts& facts) override { facts.window_size = _window; }

    void run(Communication& with, const Mode mode, const std::size_t iterations, Samples& samples) override {
        refuse_queue(mode, "a bandwidth test queues a window of messages by itself (-W)");
        Operations operations(operation_count());
        if (environment().test.persistent && takes_part()) {
            begin(with, operations, true);
        }
        barrier(environment().communicator);
        for (std::size_t i = 0; i < iterations; ++i) {
            if (barrier_each_time()) {
                barrier(environment().communicator);
            }
            if (!takes_part()) {
                continue;
            }
            const double seconds = seconds_of([&] { iterate(with, operations); });
            if (times()) {
                samples.add(seconds, messages_per_iteration());
            }
        }
        samples.iterations += iterations;
        samples.iterations_per_sample = static_cast<std::size_t>(_window);
        if (environment().test.persistent) {
            with.release(operations);
        }
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        MPI_Comm communicator = environment().communicator;
        const double total = over_ranks_at_root(samples.total, MPI_SUM, communicator) / timing_ranks();
        const double messages = messages_per_iteration() * streams() * static_cast<double>(samples.iterations);
        measurement.iterations = samples.iterations;
        measurement.iterations_per_sample = static_cast<std::size_t>(_window);
        measurement.samples = slowest_of_ranks(samples.operation, communicator);
        sum_up_bandwidth({moved(), messages, streams(), total}, environment().options.percentiles, measurement);
        fill_transmit_size(measurement);
    }

  protected:
    /// Whether this rank's clock counts.
    [[nodiscard]] virtual bool times() const = 0;
    /// Over how many ranks the sum of times is averaged.
    [[nodiscard]] virtual double timing_ranks() const { return 1; }
    /// How many pairs move as many messages as one does.
    [[nodiscard]] virtual double streams() const { return 1; }
    /// Messages of one pair in one iteration.
    [[nodiscard]] virtual double messages_per_iteration() const { return _window; }
    [[nodiscard]] virtual bool barrier_each_time() const { return false; }
    [[nodiscard]] virtual std::size_t operation_count() const { return static_cast<std::size_t>(_window); }
    /// Starts a window of messages, or initialises them where they are persistent.
    virtual void begin(Communication& with, Operations& operations, bool persistent) = 0;
    virtual void iterate(Communication& with, Operations& operations) = 0;

    void exchange(Communication& with, const int /* source */, const int /* destination */) override {
        Operations operations(operation_count());
        if (environment().test.persistent) {
            begin(with, operations, true);
        }
        iterate(with, operations);
        if (environment().test.persistent) {
            with.release(operations);
        }
    }

    [[nodiscard]] int window() const noexcept { return _window; }

    void complete(Communication& with, Operations& operations, const std::size_t count) const {
        if (environment().options.one_by_one) {
            with.wait_one_by_one(operations, 0, count);
        } else {
            with.wait(operations, 0, count);
        }
    }

    /// The messages of a window to or from one peer.
    void begin(Communication& with, Operations& operations, const bool persistent, const std::size_t first,
               const Direction direction, const int peer, const int tag) {
        for (int i = 0; i < _window; ++i) {
            const std::size_t index = first + static_cast<std::size_t>(i);
            const MessageCall message = call(direction, i, peer, tag);
            persistent ? with.initialize(operations, index, message) : with.start(operations, index, message);
        }
    }
    /// Travels between the same kinds of buffers as what it answers, and costs what they cost.
    void answer(Communication& with, const Direction direction, const int peer) {
        MessageCall answer = call(direction, 0, peer, kAnswerTag);
        answer.count = 1;
        answer.type = MPI_CHAR;
        with.run(answer);
    }

  private:
    /// Managed memory always gets one buffer a message, as in the OSU micro-benchmarks.
    static bool multiple_buffers(const Environment& environment) {
        bool managed = false;
        for (int rank = 0; rank < environment.ranks; ++rank) {
            const RankBuffers kinds = buffers_of_rank(environment.options, environment.test, rank, environment.ranks);
            managed = managed || kinds.send.kind == BufferKind::managed || kinds.receive.kind == BufferKind::managed;
        }
        return managed || environment.options.multiple_buffers;
    }

    const int _window;
};

/// bw and mbw_mr: the lower half of the ranks sends windows, the upper half answers.
class UniBandwidth : public Bandwidth {
  public:
    using Bandwidth::Bandwidth;

    void describe(HeaderFacts& facts) override {
        Bandwidth::describe(facts);
        facts.pairs = pairs();
    }

    void run_raw(RawCopy& raw, const std::size_t iterations, Samples& samples) override {
        pull_raw(raw, iterations, samples, window(), 1, "a raw copy moves messages between two ranks");
    }

  protected:
    [[nodiscard]] bool times() const override { return is_lower(); }
    [[nodiscard]] double timing_ranks() const override { return pairs(); }
    [[nodiscard]] double streams() const override { return pairs(); }
    [[nodiscard]] bool barrier_each_time() const override {
        return environment().test.family == Family::multiple_bandwidth;
    }
    [[nodiscard]] std::vector<int> sources() const override {
        return is_lower() ? std::vector<int>{} : PointToPoint::sources();
    }
    [[nodiscard]] std::vector<int> destinations() const override {
        return is_lower() ? PointToPoint::sources() : std::vector<int>{};
    }

    void begin(Communication& with, Operations& operations, const bool persistent) override {
        Bandwidth::begin(with, operations, persistent, 0, direction(), partner(), kDataTag);
    }

    void iterate(Communication& with, Operations& operations) override {
        const auto all = static_cast<std::size_t>(window());
        if (environment().test.persistent) {
            with.restart(operations, 0, all);
        } else {
            begin(with, operations, false);
        }
        complete(with, operations, all);
        answer(with, opposite(direction()), partner());
    }

  private:
    [[nodiscard]] Direction direction() const noexcept { return is_lower() ? Direction::send : Direction::receive; }
};

/// bibw: windows both ways at once, and no answer.
class BidirectionalBandwidth final : public Bandwidth {
  public:
    using Bandwidth::Bandwidth;

    void run_raw(RawCopy& raw, const std::size_t iterations, Samples& samples) override {
        prepare_raw(raw);
        for (std::size_t i = 0; i < iterations; ++i) {
            barrier(environment().communicator);
            const double seconds = seconds_of([&] {
                pull(raw, window());
                barrier(environment().communicator);  // over when both are
            });
            if (times()) {
                samples.add(seconds, messages_per_iteration());
            }
        }
        samples.iterations += iterations;
    }

  protected:
    [[nodiscard]] bool times() const override { return rank() == 0; }
    [[nodiscard]] double messages_per_iteration() const override { return 2.0 * window(); }
    [[nodiscard]] std::size_t operation_count() const override { return 2 * static_cast<std::size_t>(window()); }

    void begin(Communication& with, Operations& operations, const bool persistent) override {
        const int tag_in = rank() == 0 ? kBackTag : kDataTag;
        const int tag_out = rank() == 0 ? kDataTag : kBackTag;
        Bandwidth::begin(with, operations, persistent, first_receive(), Direction::receive, partner(), tag_in);
        Bandwidth::begin(with, operations, persistent, 0, Direction::send, partner(), tag_out);
    }

    void iterate(Communication& with, Operations& operations) override {
        const auto all = static_cast<std::size_t>(window());
        if (environment().test.persistent) {
            with.restart(operations, first_receive(), all);
            with.restart(operations, 0, all);
        } else {
            begin(with, operations, false);
        }
        complete(with, operations, 2 * all);
    }

  private:
    [[nodiscard]] std::size_t first_receive() const noexcept { return static_cast<std::size_t>(window()); }
};

/// bw_fan_in and bw_fan_out: between the ranks of the first node and those with the same place on all other nodes. On a
/// single node each rank stands for a node.
class Congestion final : public Bandwidth {
  public:
    Congestion(const Environment& environment, const int window)
        : Bandwidth(environment, window), _fan_in(std::strcmp(environment.test.name, "bw_fan_in") == 0) {
        find_places();
    }

  protected:
    [[nodiscard]] bool takes_part() const override { return true; }
    [[nodiscard]] bool times() const override { return direction() == Direction::send; }
    [[nodiscard]] double timing_ranks() const override { return _fan_in ? _per_node * (_nodes - 1) : _per_node; }
    [[nodiscard]] double streams() const override { return _per_node * (_nodes - 1); }
    [[nodiscard]] std::size_t operation_count() const override {
        return static_cast<std::size_t>(window()) * std::max<std::size_t>(_peers.size(), 1);
    }
    [[nodiscard]] std::vector<int> sources() const override {
        return direction() == Direction::receive ? _peers : std::vector<int>{};
    }
    [[nodiscard]] std::vector<int> destinations() const override {
        return direction() == Direction::send ? _peers : std::vector<int>{};
    }

    /// With one peer: what several send would land in the same buffers.
    void exchange(Communication& with, const int source, const int destination) override {
        Operations operations(static_cast<std::size_t>(window()));
        Bandwidth::begin(with, operations, false, 0, direction(), std::max(source, destination), kDataTag);
        with.wait(operations, 0, operations.requests.size());
    }

    void begin(Communication& with, Operations& operations, const bool persistent) override {
        if (persistent) {
            throw Unavailable("there is no persistent form of this test", "use bw_persistent");
        }
        // Message by message around the peers, so that all links are busy at once.
        std::size_t index = 0;
        for (int i = 0; i < window(); ++i) {
            for (const int peer : _peers) {
                with.start(operations, index++, call(direction(), i, peer, kDataTag));
            }
        }
    }

    void iterate(Communication& with, Operations& operations) override {
        begin(with, operations, false);
        with.wait(operations, 0, static_cast<std::size_t>(window()) * _peers.size());
        for (const int peer : _peers) {
            answer(with, opposite(direction()), peer);
        }
    }

  private:
    [[nodiscard]] bool is_parent() const noexcept { return _node == 0; }
    [[nodiscard]] Direction direction() const noexcept {
        return is_parent() == _fan_in ? Direction::receive : Direction::send;
    }

    void find_places() {
        MPI_Comm communicator = environment().communicator;
        MPI_Comm node = MPI_COMM_NULL;
        check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
                  "MPI_Comm_split_type");
        int place[2] = {0, rank()};  // on the node; lowest rank of the node
        MPI_Comm_rank(node, &place[0]);
        MPI_Bcast(&place[1], 1, MPI_INT, 0, node);
        MPI_Comm_free(&node);
        const int ranks = environment().ranks;
        std::vector<int> places(2 * static_cast<std::size_t>(ranks));
        check_mpi(MPI_Allgather(place, 2, MPI_INT, places.data(), 2, MPI_INT, communicator), "MPI_Allgather");
        std::map<int, std::vector<int>> nodes;
        for (int r = 0; r < ranks; ++r) {
            nodes[places[2 * static_cast<std::size_t>(r) + 1]].push_back(r);
        }
        if (nodes.size() == 1) {
            nodes.clear();
            for (int r = 0; r < ranks; ++r) {
                nodes[r] = {r};
            }
            if (rank() == 0 && !environment().options.quiet_notes) {
                std::fprintf(stderr, "awaken: all ranks are on one node; each of them stands for a node\n");
            }
        }
        const std::vector<int>& parents = nodes.begin()->second;
        _nodes = static_cast<int>(nodes.size());
        _per_node = static_cast<int>(parents.size());
        int node_number = 0;
        for (const auto& [lowest, members] : nodes) {
            if (members.size() != parents.size()) {
                throw Error("the nodes have different numbers of ranks, and " + std::string(environment().test.name) +
                                " pairs them",
                            "start the same number of ranks on each node");
            }
            const auto self = std::find(members.begin(), members.end(), rank());
            if (self != members.end()) {
                _node = node_number;
                if (node_number != 0) {
                    _peers = {parents[static_cast<std::size_t>(self - members.begin())]};
                }
            }
            ++node_number;
        }
        if (is_parent()) {
            const auto self = std::find(parents.begin(), parents.end(), rank()) - parents.begin();
            for (auto other = std::next(nodes.begin()); other != nodes.end(); ++other) {
                _peers.push_back(other->second[static_cast<std::size_t>(self)]);
            }
        }
    }

    const bool _fan_in;
    int _node = 0;
    int _nodes = 0;
    int _per_node = 0;
    std::vector<int> _peers;
};

}  // namespace

std::unique_ptr<Benchmark> make_point_to_point(const Environment& environment) {
    const int window = environment.options.window_size.value_or(defaults_of(environment.test).window_size);
    switch (environment.test.family) {
        case Family::latency:
        case Family::multiple_latency:
            if (environment.test.persistent) {
                return std::make_unique<PersistentLatency>(environment);
            }
            return std::make_unique<Latency>(environment);
        case Family::partitioned_latency:
            return std::make_unique<PartitionedLatency>(environment);
        case Family::threaded_latency:
            return std::make_unique<ThreadedLatency>(environment);
        case Family::process_latency:
            return std::make_unique<ProcessLatency>(environment);
        case Family::bandwidth:
        case Family::multiple_bandwidth:
            return std::make_unique<UniBandwidth>(environment, window);
        case Family::bidirectional_bandwidth:
            return std::make_unique<BidirectionalBandwidth>(environment, window);
        case Family::congestion:
            return std::make_unique<Congestion>(environment, window);
        default:
            throw Error(std::string(environment.test.name) + " is not a point-to-point test",
                        "see `awaken bench --list`");
    }
}

}  // namespace awaken::bench
