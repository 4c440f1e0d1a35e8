// SPDX-License-Identifier: Apache-2.0
// The exchange of a halo as programs write it: kernels in a stream, mostly the default one, make what is sent, messages
// go both ways around a ring of ranks, and the kernels of the next step follow. It measures who waits between them: a
// CPU for its kernels, or a stream for the messages.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"
#include "gpu/kernels/texts.h"
#include "mpi/benchmark.h"
#include "mpi/clock.h"
#include "mpi/mpi_functions.h"
#include "mpi/replay.h"
#include "mpi/sampling.h"

namespace awaken::bench {
namespace {

constexpr int kHaloTag = 1;
/// What goes to the rank after, and what goes to the rank before.
constexpr std::size_t kSides = 2;
/// Both begin at an address that suits every kind of access.
constexpr std::size_t kAlignment = 256;
/// Iterations of a check, back to back: more than one, so that a kernel may overwrite what is not sent yet.
constexpr std::size_t kChecked = 4;

class Halo final : public Benchmark {
  public:
    explicit Halo(const Environment& environment) : _environment(environment), _stream{nullptr, environment.device} {
        std::string log;
        const gpu::Status loaded =
            gpu().load_kernels(environment.device, "fill.h", gpu::kernels::fill_source, _module, log);
        if (!loaded.ok()) {
            throw Error(
                "the kernel of halo cannot be compiled (" + loaded.message() + (log.empty() ? "" : "; " + log) + ")",
                "install the toolkit's run-time compiler (NVRTC or HIPRTC)");
        }
        require(gpu().find_kernel(_module, "awaken_fill_pattern", _kernel));
    }
    ~Halo() override { static_cast<void>(gpu().unload_kernels(_module).ok()); }
    Halo(const Halo&) = delete;
    Halo& operator=(const Halo&) = delete;

    void describe(HeaderFacts& facts) override { facts.kernels = _environment.options.kernels; }

    /// Messages are bytes.
    void set_type(const ElementType /* type */) override {}

    [[nodiscard]] bool resize(const std::size_t size) override {
        for (std::optional<Buffer>* const buffer : {&_send, &_receive, &_received}) {
            buffer->reset();
        }
        _size = size;
        const auto& [options, test, communicator, rank, ranks, gpu, device, level] = _environment;
        const RankBuffers choice = buffers_of_rank(options, test, rank, ranks);
        const std::size_t offset = options.unaligned ? 1 : 0;
        _send.emplace(gpu, device, choice.send, span(), offset);
        _receive.emplace(gpu, device, choice.receive, span(), offset);
        if (options.validate) {
            _received.emplace(gpu, device, choice.receive, kChecked * span(), offset);
        }
        return true;
    }

    [[nodiscard]] std::vector<const Buffer*> buffers() const override { return {&*_send, &*_receive}; }

    void run(Communication& with, const Mode /* mode */, const std::size_t iterations, Samples& samples) override {
        Operations operations(2 * kSides);
        _stream.value = with.stream();
        const Replay replay(_environment, with, [&] { iterate(with, operations); });
        barrier(_environment.communicator);
        const double seconds = seconds_of([&] {
            for (std::size_t i = 0; i < iterations; ++i) {
                replay.launch();
            }
            synchronize();
        });
        samples.add(seconds, static_cast<double>(iterations));
        samples.iterations += iterations;
        samples.iterations_per_sample = std::max(samples.iterations_per_sample, iterations);
    }

    /// Each iteration's halo is copied away in the order of the stream, as the kernels of a program would read it.
    [[nodiscard]] Mismatch check(Communication& with, const Mode /* mode */, const std::uint64_t /* iteration */,
                                 const bool corrupt) override {
        Operations operations(2 * kSides);
        _stream.value = with.stream();
        std::array<std::uint64_t, kChecked> launched{};
        const Replay replay(_environment, with, [&] {
            for (std::size_t i = 0; i < kChecked; ++i) {
                iterate(with, operations);
                launched[i] = _launched;
                require(gpu().copy(at(*_received, i * span()), _receive->data(), span(), _stream));
            }
        });
        replay.launch();
        replay.launch();
        synchronize();
        if (corrupt && _environment.rank == 1) {
            _received->damage_data();
        }
        Mismatch mismatch;
        for (std::size_t i = 0; i < kChecked; ++i) {
            for (std::size_t side = 0; side < kSides; ++side) {
                const int source = neighbour(Direction::receive, side);
                mismatch.add(compared(*_received, i * span() + place(side), seed_of(source, launched[i]), side));
            }
        }
        for (std::size_t side = 0; side < kSides; ++side) {
            Mismatch changed = compared(*_send, place(side), seed_of(_environment.rank, _launched), side);
            if (changed.wrong_elements != 0) {
                changed.first += " in the send buffer";
            }
            mismatch.add(changed);
        }
        return mismatch;
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        MPI_Comm communicator = _environment.communicator;
        const double total = over_ranks_at_root(samples.total, MPI_MAX, communicator);
        measurement.iterations = samples.iterations;
        measurement.iterations_per_sample = samples.iterations_per_sample;
        measurement.average = total * 1e6 / static_cast<double>(samples.iterations);
        measurement.samples = slowest_of_ranks(samples.operation, communicator);
    }

  private:
    void iterate(Communication& with, Operations& operations) {
        for (int i = 0; i < _environment.options.kernels; ++i) {
            write_halo();
        }
        if (!with.follows_stream()) {
            synchronize();
        }
        // Of two ranks each is the other's neighbour on both sides, and NCCL matches their messages by order: both
        // sides are walked in the same one.
        for (std::size_t side = 0; side < kSides; ++side) {
            with.start(operations, side, message(Direction::receive, side));
        }
        for (std::size_t side = 0; side < kSides; ++side) {
            with.start(operations, kSides + side, message(Direction::send, side));
        }
        with.wait_in_stream(operations, 0, 2 * kSides);
    }

    /// A kernel, each of which writes other data.
    void write_halo() {
        constexpr std::size_t kThreads = 256;
        constexpr std::size_t kMostBlocks = 1024;
        void* target = _send->data();
        unsigned long long bytes = span();
        unsigned long long seed = seed_of(_environment.rank, ++_launched);
        unsigned long long first = 0;
        void* arguments[] = {static_cast<void*>(&target), &bytes, &seed, &first};
        const std::size_t blocks = round_up(span() / sizeof(std::uint64_t), kThreads) / kThreads;
        require(gpu().launch(_kernel, {static_cast<unsigned>(std::min(blocks, kMostBlocks)), 1, 1}, {kThreads, 1, 1}, 0,
                             _stream, arguments));
    }

    void synchronize() { require(gpu().synchronize_stream(_stream)); }

    [[nodiscard]] gpu::Runtime& gpu() const noexcept { return _environment.gpu; }
    [[nodiscard]] std::size_t span() const noexcept { return kSides * round_up(_size, kAlignment); }
    [[nodiscard]] std::size_t place(const std::size_t side) const noexcept { return side * span() / kSides; }
    [[nodiscard]] static void* at(const Buffer& buffer, const std::size_t offset) noexcept {
        return static_cast<std::byte*>(buffer.data()) + offset;
    }

    /// Side 0 goes to the rank after, and comes from the rank before.
    [[nodiscard]] int neighbour(const Direction direction, const std::size_t side) const noexcept {
        const int ranks = _environment.ranks;
        const bool after = (direction == Direction::send) == (side == 0);
        return (_environment.rank + (after ? 1 : ranks - 1)) % ranks;
    }

    [[nodiscard]] MessageCall message(const Direction direction, const std::size_t side) const {
        return {direction,
                at(direction == Direction::send ? *_send : *_receive, place(side)),
                static_cast<Count>(_size),
                MPI_CHAR,
                neighbour(direction, side),
                kHaloTag + static_cast<int>(side),
                _environment.communicator};
    }

    /// All ranks have launched as many kernels.
    [[nodiscard]] static std::uint64_t seed_of(const int rank, const std::uint64_t launched) noexcept {
        return static_cast<std::uint64_t>(rank) << 48U ^ launched;
    }

    [[nodiscard]] Mismatch compared(const Buffer& buffer, const std::size_t offset, const std::uint64_t seed,
                                    const std::size_t side) const {
        Mismatch all;
        std::vector<std::byte> actual;
        std::vector<std::byte> expected;
        for_each_piece(_size, [&](const std::size_t first, const std::size_t bytes) {
            actual.resize(bytes);
            expected.resize(bytes);
            buffer.read(actual, offset + first);
            fill_as_kernel(expected, seed, place(side) + first);
            all.add(compare(actual, expected, ElementType::char_, first));
        });
        return all;
    }

    const Environment& _environment;
    gpu::StreamHandle _stream;  ///< of the contender
    gpu::ModuleHandle _module;
    gpu::KernelHandle _kernel;
    std::size_t _size = 0;  ///< of a message
    std::optional<Buffer> _send, _receive;
    std::optional<Buffer> _received;  ///< the halos of a check, one after the other
    std::uint64_t _launched = 0;      ///< kernels
};

}  // namespace

std::unique_ptr<Benchmark> make_halo(const Environment& environment) {
    return std::make_unique<Halo>(environment);
}

}  // namespace awaken::bench
