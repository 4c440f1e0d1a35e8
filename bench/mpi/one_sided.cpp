// SPDX-License-Identifier: Apache-2.0
// One-sided benchmarks: what is done in whose window, in which epoch, and what of it is timed. Orders of calls and
// formulas are those of the OSU micro-benchmarks 7.4, so that values can be compared.
//
// Rank 0 works in the window of rank 1. In latency tests with fence or pscw both do so in turn, and half of the time
// counts, as in a ping-pong; in put_bibw both do so in the same epoch.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mpi/benchmark.h"
#include "mpi/clock.h"
#include "mpi/collective_type.h"
#include "mpi/engine.h"
#include "mpi/mpi_functions.h"
#include "mpi/sampling.h"

namespace awaken::bench {
namespace {

std::vector<std::byte> complement(std::vector<std::byte> bytes) {
    for (std::byte& byte : bytes) {
        byte = ~byte;
    }
    return bytes;
}

class OneSidedBenchmark final : public Benchmark {
  public:
    explicit OneSidedBenchmark(const Environment& environment)
        : _environment(environment),
          _operation(environment.test.one_sided),
          _form(window_form_of(environment.options, environment.test)),
          _synchronisation(synchronisation_of(environment.options, environment.test)),
          _traffic(traffic_of(environment.test, _synchronisation)),
          _messages(environment.test.family == Family::one_sided_latency
                        ? 1
                        : environment.options.window_size.value_or(defaults_of(environment.test).window_size)),
          _batches(!environment.options.percentiles.empty()) {}

    void describe(HeaderFacts& facts) override { facts.window_size = _messages; }

    void set_type(const ElementType type) override { _element = type; }

    [[nodiscard]] bool resize(const std::size_t size) override {
        close();
        _origin.reset();
        _result.reset();
        _compare.reset();
        _memory.reset();
        _batches.forget();
        _size = size;
        _count = size / size_of(_element);
        if (_count == 0) {
            return false;
        }
        if (_operation != OneSided::get) {
            _origin = make_buffer();
        }
        if (fetches()) {
            _result = make_buffer();
        }
        if (_operation == OneSided::compare_and_swap) {
            _compare = make_buffer();
        }
        if (needs_memory_of_its_own()) {
            _memory = make_buffer();
        }
        return true;
    }

    [[nodiscard]] std::vector<const Buffer*> buffers() const override {
        std::vector<const Buffer*> all;
        for (const std::optional<Buffer>* const buffer : {&_origin, &_result, &_compare, &_memory}) {
            if (buffer->has_value()) {
                all.push_back(&**buffer);
            }
        }
        for (const Opened& opened : _windows) {
            if (opened.allocated) {
                all.push_back(&*opened.allocated);
            }
        }
        return all;
    }

    void run(Communication& with, const Mode mode, const std::size_t iterations, Samples& samples) override {
        if (mode == Mode::queued) {
            throw Unavailable("each operation is waited for at the target; the bandwidth tests queue them (-W)",
                              "use --mode waited");
        }
        Opened& opened = window_of(with);
        barrier(_environment.communicator);
        begin(*opened.window);
        if (rank() != 0) {
            for (std::size_t i = 0; i < iterations; ++i) {
                iterate(opened);
            }
        } else if (_messages == 1) {
            _batches.run(with, iterations, operations_per_iteration(), samples, [&] { iterate(opened); });
        } else {
            for (std::size_t i = 0; i < iterations; ++i) {
                samples.add(seconds_of([&] { iterate(opened); }), operations_per_iteration());
            }
            samples.iterations_per_sample = static_cast<std::size_t>(_messages);
        }
        end(*opened.window);
        samples.iterations += iterations;
        // Here rank 1 lets its MPI make progress for rank 0.
        barrier(_environment.communicator);
    }

    void run_raw(RawCopy& raw, const std::size_t iterations, Samples& samples) override {
        raw.prepare(_environment.communicator, *_memory, fetches() ? *_result : *_origin);
        barrier(_environment.communicator);
        const bool both = _traffic == Traffic::both_at_once;
        for (std::size_t i = 0; i < iterations; ++i) {
            if (both) {
                barrier(_environment.communicator);
            }
            const double start = now();
            if (rank() == 0 || both) {
                copy_raw(raw);
            }
            if (both) {
                barrier(_environment.communicator);  // over when both are
            }
            if (rank() == 0) {
                // As if there and back where the test itself goes there and back.
                const double turns = _traffic == Traffic::in_turn ? 2 : 1;
                samples.add((now() - start) * turns, operations_per_iteration());
            }
        }
        samples.iterations += iterations;
        samples.iterations_per_sample = static_cast<std::size_t>(_messages);
        barrier(_environment.communicator);
    }

    [[nodiscard]] Mismatch check(Communication& with, const Mode /* mode */, const std::uint64_t iteration,
                                 const bool corrupt) override {
        Opened& opened = window_of(with);
        if (_operation != OneSided::compare_and_swap) {
            return check_once(opened, iteration, true, corrupt);
        }
        Mismatch mismatch = check_once(opened, iteration, false, false);
        mismatch.add(check_once(opened, iteration, true, corrupt));
        return mismatch;
    }

    void sum_up(const Samples& samples, Measurement& measurement) override {
        MPI_Comm communicator = _environment.communicator;
        const double total = over_ranks_at_root(samples.total, MPI_SUM, communicator);  // rank 0 alone takes the time
        const double operations = operations_per_iteration() * static_cast<double>(samples.iterations);
        measurement.iterations = samples.iterations;
        measurement.iterations_per_sample = largest_of_ranks(samples.iterations_per_sample, communicator);
        measurement.samples = slowest_of_ranks(samples.operation, communicator);
        if (_environment.test.family == Family::one_sided_latency) {
            measurement.average = total * 1e6 / operations;
        } else {
            sum_up_bandwidth({static_cast<double>(_size), operations, 1, total}, _environment.options.percentiles,
                             measurement);
        }
    }

    void close() override {
        for (Opened& opened : _windows) {
            opened.window->close();
        }
        _windows.clear();
    }

  private:
    /// Who works in whose window during an iteration.
    enum class Traffic : std::uint8_t { one_way, in_turn, both_at_once };

    /// A window of a contender.
    struct Opened {
        const Communication* with;
        std::unique_ptr<Window> window;
        std::optional<Buffer> allocated;  ///< what MPI_Win_allocate gave; else the window is over _memory
        MPI_Aint displacement;            ///< of the data in it, at all ranks
    };

    static Traffic traffic_of(const TestInfo& test, const Synchronisation synchronisation) noexcept {
        if (test.family == Family::one_sided_bidirectional_bandwidth) {
            return Traffic::both_at_once;
        }
        const bool in_turn = test.family == Family::one_sided_latency && target_takes_part(synchronisation);
        return in_turn ? Traffic::in_turn : Traffic::one_way;
    }

    // ---- who and what ----------------------------------------------------------------------------------------------

    [[nodiscard]] int rank() const noexcept { return _environment.rank; }
    [[nodiscard]] int peer() const noexcept { return 1 - _environment.rank; }
    [[nodiscard]] bool is_origin() const noexcept { return rank() == 0 || _traffic != Traffic::one_way; }
    [[nodiscard]] bool is_target() const noexcept { return rank() == 1 || _traffic != Traffic::one_way; }
    [[nodiscard]] bool fetches() const noexcept {
        return _operation != OneSided::put && _operation != OneSided::accumulate;
    }
    [[nodiscard]] double operations_per_iteration() const noexcept {
        return _traffic == Traffic::one_way ? _messages : 2.0 * _messages;
    }
    [[nodiscard]] std::size_t message_bytes() const noexcept { return _count * size_of(_element); }
    [[nodiscard]] std::size_t total_bytes() const noexcept {
        return message_bytes() * static_cast<std::size_t>(_messages);
    }
    [[nodiscard]] std::size_t offset() const noexcept { return _environment.options.unaligned ? size_of(_element) : 0; }

    // ---- memory ----------------------------------------------------------------------------------------------------

    [[nodiscard]] BufferChoice choice_of(const int of_rank) const {
        return buffers_of_rank(_environment.options, _environment.test, of_rank).send;
    }

    [[nodiscard]] Buffer make_buffer() const {
        return Buffer(_environment.gpu, _environment.device, choice_of(rank()), total_bytes(), offset());
    }

    [[nodiscard]] bool any_rank_has(const auto& property) const {
        return property(choice_of(0).kind) || property(choice_of(1).kind);
    }

    /// All but windows that the MPI allocates in host memory: no MPI need know how to allocate anything else.
    [[nodiscard]] bool needs_memory_of_its_own() const {
        const std::vector<ContenderChoice>& contenders = _environment.options.contenders;
        return _form != WindowForm::allocate || any_rank_has([](auto kind) { return kind != BufferKind::host; }) ||
               std::any_of(contenders.begin(), contenders.end(), [](const ContenderChoice& contender) {
                   return contender.kind == ContenderChoice::Kind::raw;
               });
    }

    // ---- windows ---------------------------------------------------------------------------------------------------

    /// Opened at first use, and kept: making a window costs more than what is measured in it. Collective.
    Opened& window_of(Communication& with) {
        const auto known =
            std::find_if(_windows.begin(), _windows.end(), [&](const Opened& opened) { return opened.with == &with; });
        if (known != _windows.end()) {
            return *known;
        }
        std::optional<Opened> opened;
        if (_form == WindowForm::allocate) {
            opened = open_allocated(with);
        }
        if (!opened) {
            // As the OSU micro-benchmarks do where MPI_Win_allocate does not give that kind of memory.
            WindowRequest request = this->request();
            request.form = _form == WindowForm::dynamic ? WindowForm::dynamic : WindowForm::create;
            request.base = _memory->data();
            request.bytes = _memory->size();
            opened.emplace(Opened{&with, with.open_window(request), std::nullopt, 0});
        }
        return _windows.emplace_back(*std::move(opened));
    }

    [[nodiscard]] WindowRequest request() const {
        WindowRequest request;
        request.operation = _operation;
        request.is_target = is_target();
        request.target_takes_part = target_takes_part(_synchronisation);
        request.peer = peer();
        request.communicator = _environment.communicator;
        return request;
    }

    /// Nothing, at both ranks, where the MPI allocates another kind of memory than was asked for at either.
    std::optional<Opened> open_allocated(Communication& with) {
        const auto cannot_be_asked_for = [](const BufferKind kind) {
            return kind != BufferKind::host && kind != BufferKind::device;
        };
        if (any_rank_has(cannot_be_asked_for)) {
            return std::nullopt;
        }
        const BufferChoice choice = choice_of(rank());
        WindowRequest request = this->request();
        request.form = WindowForm::allocate;
        request.bytes = Buffer::capacity_for(total_bytes(), offset());
        if (choice.kind == BufferKind::device) {
            request.memory_kinds = _environment.gpu.vendor() == gpu::Vendor::hip ? "rocm:device" : "cuda:device";
        }
        Opened opened{&with, with.open_window(request), std::nullopt, 0};
        try {
            if (opened.window->base() != nullptr) {
                opened.allocated.emplace(_environment.gpu, _environment.device, choice, total_bytes(), offset(),
                                         opened.window->base());
            }
        } catch (const Error&) {
            // Of another kind; the ranks agree below.
        }
        if (over_ranks(opened.allocated ? 1 : 0, MPI_MIN, _environment.communicator) == 0) {
            opened.allocated.reset();
            opened.window->close();
            return std::nullopt;
        }
        opened.displacement =
            static_cast<std::byte*>(opened.allocated->data()) - static_cast<std::byte*>(opened.window->base());
        return opened;
    }

    // ---- epochs ----------------------------------------------------------------------------------------------------

    void issue(Opened& opened) {
        WindowCall call;
        call.operation = _operation;
        call.count = static_cast<Count>(_count);
        call.type = mpi_type(_element);
        call.combine = MPI_SUM;
        call.target = peer();
        for (int message = 0; message < _messages; ++message) {
            const std::size_t at = static_cast<std::size_t>(message) * message_bytes();
            call.origin = address(_origin, at);
            call.result = address(_result, at);
            call.compare = address(_compare, at);
            call.displacement = opened.displacement + static_cast<MPI_Aint>(at);
            opened.window->issue(call);
        }
    }

    static void* address(const std::optional<Buffer>& buffer, const std::size_t at) noexcept {
        return buffer ? static_cast<std::byte*>(buffer->data()) + at : nullptr;
    }

    /// What the OSU micro-benchmarks lock with.
    [[nodiscard]] LockKind lock_kind() const noexcept {
        const bool single = _environment.test.is_of_one_element() && _synchronisation == Synchronisation::lock;
        return single || _operation == OneSided::get_accumulate ? LockKind::exclusive : LockKind::shared;
    }

    /// With flush and flush_local one lock is held throughout.
    void begin(Window& window) {
        if (keeps_lock()) {
            window.lock(peer(), lock_kind());
        }
    }
    void end(Window& window) {
        if (keeps_lock()) {
            window.unlock(peer());
        }
    }
    [[nodiscard]] bool keeps_lock() const noexcept {
        return rank() == 0 &&
               (_synchronisation == Synchronisation::flush || _synchronisation == Synchronisation::flush_local);
    }

    void iterate(Opened& opened) {
        Window& window = *opened.window;
        const auto at_origin = [&](const auto& begin_epoch, const auto& end_epoch) {
            if (rank() == 0) {
                begin_epoch();
                issue(opened);
                end_epoch();
            }
        };
        const auto nothing = [] {};  // begin() has locked
        switch (_synchronisation) {
            case Synchronisation::fence:
                _traffic == Traffic::in_turn ? fence_in_turn(opened) : fence_together(opened);
                break;
            case Synchronisation::pscw:
                post_and_start(opened);
                break;
            case Synchronisation::lock:
                at_origin([&] { window.lock(peer(), lock_kind()); }, [&] { window.unlock(peer()); });
                break;
            case Synchronisation::lock_all:
                at_origin([&] { window.lock_all(); }, [&] { window.unlock_all(); });
                break;
            case Synchronisation::flush:
                at_origin(nothing, [&] { window.flush(peer()); });
                break;
            case Synchronisation::flush_local:
                at_origin(nothing, [&] { window.flush_local(peer()); });
                break;
        }
    }

    void fence_in_turn(Opened& opened) {
        Window& window = *opened.window;
        const bool first = rank() == 0;
        window.fence(first ? Exposure::none : Exposure::begins);
        if (first) {
            issue(opened);
        }
        window.fence(first ? Exposure::begins : Exposure::ends);
        if (!first) {
            issue(opened);
        }
        window.fence(first ? Exposure::ends : Exposure::none);
    }

    void fence_together(Opened& opened) {
        opened.window->fence(is_target() ? Exposure::begins : Exposure::none);
        if (is_origin()) {
            issue(opened);
        }
        opened.window->fence(is_target() ? Exposure::ends : Exposure::none);
    }

    void post_and_start(Opened& opened) {
        Window& window = *opened.window;
        const auto work = [&] {
            window.start();
            issue(opened);
            window.complete();
        };
        const auto let_work = [&] {
            window.post();
            window.wait();
        };
        switch (_traffic) {
            case Traffic::one_way:
                rank() == 0 ? work() : let_work();
                break;
            case Traffic::in_turn:
                if (rank() == 0) {
                    work();
                    let_work();
                } else {
                    let_work();
                    work();
                }
                break;
            case Traffic::both_at_once:
                window.post();
                work();
                window.wait();
                break;
        }
    }

    /// Local access to what others may reach is access to the window: where the target has no epoch of its own, a lock.
    template <typename Access>
    void in_own_memory(Opened& opened, const Access& access) {
        const bool passive = !target_takes_part(_synchronisation);
        if (passive) {
            opened.window->lock(rank(), LockKind::exclusive);
        }
        access(opened.allocated ? *opened.allocated : *_memory);
        if (passive) {
            opened.window->unlock(rank());
        }
    }

    void copy_raw(RawCopy& raw) const {
        const auto messages = static_cast<std::size_t>(_messages);
        if (fetches()) {
            raw.pull(peer(), message_bytes(), messages);
        }
        if (_operation != OneSided::get) {
            raw.push(peer(), message_bytes(), messages);
        }
    }

    // ---- the check -------------------------------------------------------------------------------------------------

    /// A piece of what all messages of an epoch move.
    struct Piece {
        std::size_t first;  ///< bytes
        std::size_t bytes;
        std::uint64_t iteration;
    };

    [[nodiscard]] std::size_t first_element(const Piece& piece) const { return piece.first / size_of(_element); }

    /// What an operation finds in the window of `of_rank`.
    [[nodiscard]] std::vector<std::byte> in_window_before(const int of_rank, const Piece& piece) const {
        std::vector<std::byte> bytes(piece.bytes, kUntouched);
        switch (_operation) {
            case OneSided::put:
            case OneSided::none:
                break;
            case OneSided::get:
            case OneSided::compare_and_swap:
                fill_pattern(bytes, _element, stream_of(of_rank, of_rank), piece.iteration, first_element(piece));
                break;
            case OneSided::accumulate:
            case OneSided::get_accumulate:
            case OneSided::fetch_and_op:
                fill_summand(bytes, _element, of_rank, 2, piece.iteration, first_element(piece));
                break;
        }
        return bytes;
    }

    /// What `of_rank` brings.
    [[nodiscard]] std::vector<std::byte> at_origin(const int of_rank, const Piece& piece) const {
        if (_operation == OneSided::compare_and_swap) {
            // Another value than the one to be replaced, whatever the type.
            return complement(in_window_before(1 - of_rank, piece));
        }
        std::vector<std::byte> bytes(piece.bytes);
        if (_operation == OneSided::put) {
            fill_pattern(bytes, _element, stream_of(of_rank, 1 - of_rank), piece.iteration, first_element(piece));
        } else {
            fill_summand(bytes, _element, of_rank, 2, piece.iteration, first_element(piece));
        }
        return bytes;
    }

    /// What must be in the window of this rank once the other has worked in it. `swaps`: of compare-and-swap.
    [[nodiscard]] std::vector<std::byte> in_window_after(const Piece& piece, const bool swaps) const {
        switch (_operation) {
            case OneSided::put:
                return at_origin(peer(), piece);
            case OneSided::compare_and_swap:
                return swaps ? at_origin(peer(), piece) : in_window_before(rank(), piece);
            case OneSided::accumulate:
            case OneSided::get_accumulate:
            case OneSided::fetch_and_op: {
                std::vector<std::byte> bytes(piece.bytes);
                fill_sum(bytes, _element, 2, 2, piece.iteration, first_element(piece));
                return bytes;
            }
            case OneSided::get:
            case OneSided::none:
                break;
        }
        return in_window_before(rank(), piece);
    }

    /// `content(piece)` is what the buffer is to hold.
    static void write(Buffer& buffer, const std::uint64_t iteration, const auto& content) {
        for_each_piece(buffer.size(), [&](const std::size_t first, const std::size_t bytes) {
            buffer.write(content(Piece{first, bytes, iteration}), first);
        });
    }

    /// `content(piece)` is what the buffer should hold.
    [[nodiscard]] Mismatch compare_with(const Buffer& buffer, const std::uint64_t iteration,
                                        const auto& content) const {
        Mismatch all;
        std::vector<std::byte> actual;
        for_each_piece(buffer.size(), [&](const std::size_t first, const std::size_t bytes) {
            const Piece piece{first, bytes, iteration};
            actual.resize(bytes);
            buffer.read(actual, first);
            all.add(compare(actual, content(piece), _element, first_element(piece)));
        });
        return all;
    }

    /// `swaps`: whether a compare-and-swap finds the value that it compares with.
    Mismatch check_once(Opened& opened, const std::uint64_t iteration, const bool swaps, const bool corrupt) {
        const auto before_here = [&](const Piece& piece) { return in_window_before(rank(), piece); };
        const auto before_there = [&](const Piece& piece) { return in_window_before(peer(), piece); };
        const auto brought = [&](const Piece& piece) { return at_origin(rank(), piece); };
        in_own_memory(opened, [&](Buffer& memory) { write(memory, iteration, before_here); });
        if (_origin) {
            write(*_origin, iteration, brought);
        }
        if (_compare) {
            write(*_compare, iteration,
                  [&](const Piece& piece) { return swaps ? before_there(piece) : complement(before_there(piece)); });
        }
        if (_result) {
            _result->fill(kUntouched);
        }
        barrier(_environment.communicator);
        begin(*opened.window);
        iterate(opened);
        end(*opened.window);
        barrier(_environment.communicator);
        if (corrupt) {
            damage_what_arrived(opened);
        }

        Mismatch mismatch;
        in_own_memory(opened, [&](const Buffer& memory) {
            mismatch.add(compare_with(memory, iteration, [&](const Piece& piece) {
                return is_target() ? in_window_after(piece, swaps) : before_here(piece);
            }));
        });
        if (_result && is_origin()) {
            mismatch.add(compare_with(*_result, iteration, before_there));
        }
        if (_origin) {
            Mismatch changed = compare_with(*_origin, iteration, brought);
            if (changed.wrong_elements != 0) {
                changed.first += " in the origin buffer";
            }
            mismatch.add(changed);
        }
        return mismatch;
    }

    /// Preferably not at rank 0, so that the test also shows that findings of other ranks arrive.
    void damage_what_arrived(Opened& opened) {
        const bool rank_1_receives = _operation != OneSided::get || _traffic != Traffic::one_way;
        if (rank() != (rank_1_receives ? 1 : 0)) {
            return;
        }
        if (_operation == OneSided::get) {
            _result->damage_data();
        } else {
            in_own_memory(opened, [](Buffer& memory) { memory.damage_data(); });
        }
    }

    const Environment& _environment;
    const OneSided _operation;
    const WindowForm _form;
    const Synchronisation _synchronisation;
    const Traffic _traffic;
    const int _messages;  ///< in an epoch
    Batches _batches;
    ElementType _element = ElementType::char_;
    // Of the present size.
    std::size_t _size = 0;
    std::size_t _count = 0;  ///< elements of a message
    std::optional<Buffer> _origin, _result, _compare;
    std::optional<Buffer> _memory;  ///< for windows that are made over memory, and raw copies
    std::vector<Opened> _windows;
};

}  // namespace

std::unique_ptr<Benchmark> make_one_sided(const Environment& environment) {
    return std::make_unique<OneSidedBenchmark>(environment);
}

}  // namespace awaken::bench
