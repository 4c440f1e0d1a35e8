// SPDX-License-Identifier: Apache-2.0
// What processes do first: a message, an exchange or a reduction, before which no memory of these buffers has been
// communicated. The engine's cold first call is the first of the process, since a launch runs one contender at one size
// (runner/launches.cpp); what it runs after that is the second.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "mpi/benchmark.h"
#include "mpi/clock.h"
#include "mpi/mpi_functions.h"
#include "mpi/sampling.h"

namespace awaken::bench {
namespace {

constexpr int kTag = 1;

class First final : public Benchmark {
  public:
    explicit First(const Environment& environment)
        : _environment(environment),
          _operation(first_figures(environment.options, environment.test).front().operation),
          _allocation(first_figures(environment.options, environment.test).front().allocation) {}

    void set_type(const ElementType type) override { _element = type; }

    /// What a program does before it communicates: the GPU has allocated and filled the buffers when this returns.
    [[nodiscard]] bool resize(const std::size_t size) override {
        _send.reset();
        _receive.reset();
        _bytes = size / size_of(_element) * size_of(_element);
        if (_bytes == 0) {
            return false;
        }
        const auto& [options, test, communicator, rank, ranks, gpu, device, level] = _environment;
        const RankBuffers choice = buffers_of_rank(options, test, rank, ranks);
        const std::size_t offset = options.unaligned ? size_of(_element) : 0;
        _send.emplace(gpu, device, choice.send, _allocation, offset);
        _receive.emplace(gpu, device, choice.receive, _allocation, offset);
        return true;
    }

    [[nodiscard]] std::vector<const Buffer*> buffers() const override { return {&*_send, &*_receive}; }

    void run(Communication& with, const Mode /* mode */, const std::size_t iterations, Samples& samples) override {
        for (std::size_t i = 0; i < iterations; ++i) {
            if (_environment.options.validate) {
                write_data();
            }
            barrier(_environment.communicator);
            samples.add(seconds_of([&] {
                            with.connect();
                            operate(with);
                        }),
                        1);
        }
        samples.iterations += iterations;
    }

    /// Of what the last run() has delivered: another transfer would come between the first and the second.
    [[nodiscard]] Mismatch check(Communication& /* with */, const Mode /* mode */, const std::uint64_t /* iteration */,
                                 const bool /* corrupt */) override {
        Mismatch mismatch;
        if (source() >= 0) {
            mismatch.add(compared(*_receive, &First::fill_received));
        }
        if (destination() >= 0) {
            Mismatch changed = compared(*_send, &First::fill_sent);
            if (changed.wrong_elements != 0) {
                changed.first += " in the send buffer";
            }
            mismatch.add(changed);
        }
        return mismatch;
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        measurement.iterations = samples.iterations;
        measurement.samples = slowest_of_ranks(samples.operation, _environment.communicator);
        measurement.average = summarize(measurement.samples).mean;
    }

  private:
    // Of a reduction all ranks are both.
    [[nodiscard]] int destination() const noexcept {
        return _operation != FirstOperation::message ? next(1) : rank() == 0 ? 1 : -1;
    }
    [[nodiscard]] int source() const noexcept {
        return _operation != FirstOperation::message ? next(ranks() - 1) : rank() == 1 ? 0 : -1;
    }
    [[nodiscard]] int next(const int steps) const noexcept { return (rank() + steps) % ranks(); }
    [[nodiscard]] int rank() const noexcept { return _environment.rank; }
    [[nodiscard]] int ranks() const noexcept { return _environment.ranks; }

    [[nodiscard]] Count count() const noexcept { return static_cast<Count>(_bytes / size_of(_element)); }

    [[nodiscard]] MessageCall message(const Direction direction) {
        const bool send = direction == Direction::send;
        return {direction, (send ? *_send : *_receive).data(), count(), MPI_CHAR, send ? destination() : source(),
                kTag,      _environment.communicator};
    }

    void operate(Communication& with) {
        switch (_operation) {
            case FirstOperation::message:
                if (rank() < 2) {
                    with.run(message(rank() == 0 ? Direction::send : Direction::receive));
                }
                break;
            case FirstOperation::exchange: {
                Operations operations(2);
                with.start(operations, 0, message(Direction::receive));
                with.start(operations, 1, message(Direction::send));
                with.wait(operations, 0, 2);
                break;
            }
            case FirstOperation::allreduce: {
                CollectiveCall call;
                call.collective = Collective::allreduce;
                call.send = _send->data();
                call.receive = _receive->data();
                call.send_count = call.receive_count = count();
                call.send_type = call.receive_type = MPI_INT;
                call.operation = MPI_SUM;
                call.communicator = _environment.communicator;
                with.run(call);
                break;
            }
        }
    }

    // ---- data: of each run other ones
    // --------------------------------------------------------------------------------

    void write_data() {
        ++_iteration;
        std::vector<std::byte> piece;
        for_each_piece(_bytes, [&](const std::size_t first, const std::size_t bytes) {
            piece.resize(bytes);
            fill_sent(piece, first / size_of(_element));
            _send->write(piece, first);
        });
        _receive->fill(kUntouched);
    }

    void fill_sent(const std::span<std::byte> bytes, const std::size_t first) const {
        if (_operation == FirstOperation::allreduce) {
            fill_summand(bytes, _element, rank(), ranks(), _iteration, first);
        } else {
            fill_pattern(bytes, _element, stream_of(rank(), destination()), _iteration, first);
        }
    }

    void fill_received(const std::span<std::byte> bytes, const std::size_t first) const {
        if (_operation == FirstOperation::allreduce) {
            fill_sum(bytes, _element, ranks(), ranks(), _iteration, first);
        } else {
            fill_pattern(bytes, _element, stream_of(source(), rank()), _iteration, first);
        }
    }

    [[nodiscard]] Mismatch compared(const Buffer& buffer,
                                    void (First::* const fill)(std::span<std::byte>, std::size_t) const) const {
        Mismatch all;
        std::vector<std::byte> actual;
        std::vector<std::byte> expected;
        for_each_piece(_bytes, [&](const std::size_t first, const std::size_t bytes) {
            actual.resize(bytes);
            expected.resize(bytes);
            buffer.read(actual, first);
            (this->*fill)(expected, first / size_of(_element));
            all.add(compare(actual, expected, _element, first / size_of(_element)));
        });
        return all;
    }

    const Environment& _environment;
    const FirstOperation _operation;
    const std::size_t _allocation;
    ElementType _element = ElementType::char_;
    std::size_t _bytes = 0;  ///< of the message
    std::optional<Buffer> _send, _receive;
    std::uint64_t _iteration = 0;
};

}  // namespace

std::unique_ptr<Benchmark> make_first(const Environment& environment) {
    return std::make_unique<First>(environment);
}

}  // namespace awaken::bench
