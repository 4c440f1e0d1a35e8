// SPDX-License-Identifier: Apache-2.0
// How fast things are: copies between GPUs and to the host without MPI, and messages between the ranks.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "engine/pattern.h"
#include "engine/statistics.h"
#include "mpi/clock.h"
#include "mpi/mpi_communication.h"
#include "probe/commands.h"
#include "probe/record.h"
#include "probe/trial.h"

namespace awaken::probe {
namespace {

using bench::Buffer;
using bench::BufferKind;
using bench::check_mpi;
using bench::Direction;

constexpr int kTag = 7;

/// The median of so many times, seconds, after a warm-up, which maps, connects, and wakes the device up.
double median_seconds(const int samples, const auto& work) {
    work();
    std::vector<double> seconds;
    for (int i = 0; i < samples; ++i) {
        seconds.push_back(bench::seconds_of(work));
    }
    return bench::summarize(seconds).median;
}

double gigabytes_per_second(const std::size_t bytes, const double seconds) {
    return static_cast<double>(bytes) / seconds / 1e9;
}

Buffer make_buffer(const Job& job, const BufferKind kind, const std::size_t bytes) {
    return {*job.placement.gpu, job.placement.device, {kind, false}, bytes};
}

/// What the rank sends.
std::vector<std::byte> pattern(const int rank, const std::size_t bytes) {
    std::vector<std::byte> text(bytes);
    bench::fill_pattern(text, bench::ElementType::char_, bench::stream_of(rank, rank), 0);
    return text;
}

bool holds(const Buffer& buffer, const std::vector<std::byte>& expected) {
    std::vector<std::byte> found(expected.size());
    buffer.read(found);
    return found == expected;
}

/// A stream on the rank's device, and copies in it.
class Copies {
  public:
    explicit Copies(const bench::Placement& placement) : _gpu(*placement.gpu) {
        check(_gpu.create_stream(placement.device, false, _stream), "making a stream");
    }
    ~Copies() { static_cast<void>(_gpu.destroy_stream(_stream)); }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;

    static void check(const gpu::Status& status, const char* const what) {
        if (!status.ok()) {
            throw Error(std::string(what) + " failed: " + status.message(), "see that the GPU works");
        }
    }

    void copy(void* const destination, const void* const source, const std::size_t bytes) {
        check(_gpu.copy(destination, source, bytes, _stream), "a copy");
        check(_gpu.synchronize_stream(_stream), "a copy");
    }

    /// GB/s, the median of `samples`.
    double bandwidth(void* const destination, const void* const source, const std::size_t bytes, const int samples) {
        return gigabytes_per_second(bytes, median_seconds(samples, [&] { copy(destination, source, bytes); }));
    }

  private:
    gpu::Runtime& _gpu;
    gpu::StreamHandle _stream;
};

/// What a rank tells its neighbour of its buffer; travels as bytes.
struct Offer {
    gpu::IpcMemoryHandle handle;
    std::uint64_t offset = 0;
    std::array<char, 256> host = {};
    std::array<char, 32> pci_address = {};
    std::array<char, 256> refusal = {};  ///< why there is no handle
};

template <std::size_t size>
void put(std::array<char, size>& to, const std::string& text) {
    std::memcpy(to.data(), text.data(), std::min(text.size(), size - 1));
}

Offer make_offer(const Job& job, const Buffer& buffer) {
    Offer offer;
    put(offer.host, bench::host_name());
    gpu::DeviceInfo info;
    if (job.placement.gpu->device_info(job.placement.device, info).ok()) {
        put(offer.pci_address, info.pci_bus_id);
    }
    std::size_t offset = 0;
    if (const gpu::Status status = job.placement.gpu->ipc_export(buffer.data(), offer.handle, offset); !status.ok()) {
        put(offer.refusal, status.message());
    }
    offer.offset = offset;
    return offer;
}

/// Reads the memory of the rank before by IPC, and measures that.
Json read_by_ipc(const Job& job, const Offer& theirs, const int owner, const Arguments& arguments) {
    Json record = {{"record", "ipc"}, {"rank", job.rank}, {"owner", owner}, {"works", false}};
    if (bench::host_name() != theirs.host.data()) {
        record["why_not"] = "the ranks are on different nodes";
        record["applies"] = false;
        return record;
    }
    record["applies"] = true;
    gpu::DeviceInfo info;
    static_cast<void>(job.placement.gpu->device_info(job.placement.device, info));
    record["same_gpu"] = info.pci_bus_id == theirs.pci_address.data();
    if (theirs.refusal.front() != '\0') {
        record["why_not"] = std::string("exporting: ") + theirs.refusal.data();
        return record;
    }
    void* mapping = nullptr;
    if (const gpu::Status status = job.placement.gpu->ipc_open(theirs.handle, job.placement.device, mapping);
        !status.ok()) {
        record["why_not"] = "opening: " + status.message();
        return record;
    }
    try {
        Copies copies(job.placement);
        const Buffer target = make_buffer(job, BufferKind::device, arguments.bytes);
        const auto* const source = static_cast<const std::byte*>(mapping) + theirs.offset;
        record["copy_GBps"] = copies.bandwidth(target.data(), source, arguments.bytes, arguments.samples);
        const bool works = holds(target, pattern(owner, arguments.bytes));
        record["works"] = works;
        if (!works) {
            record["why_not"] = "what was read is not what the other process wrote";
        }
    } catch (const Error& error) {
        record["why_not"] = error.cause();
    }
    static_cast<void>(job.placement.gpu->ipc_close(mapping));
    return record;
}

Json host_path(const Job& job, const Arguments& arguments) {
    Json record = {{"record", "host_path"}, {"rank", job.rank}};
    try {
        Copies copies(job.placement);
        const Buffer device = make_buffer(job, BufferKind::device, arguments.bytes);
        const Buffer host = make_buffer(job, BufferKind::pinned, arguments.bytes);
        record["to_host_GBps"] = copies.bandwidth(host.data(), device.data(), arguments.bytes, arguments.samples);
        record["to_device_GBps"] = copies.bandwidth(device.data(), host.data(), arguments.bytes, arguments.samples);
    } catch (const Error& error) {
        record["why_not"] = error.cause();
    }
    return record;
}

/// Which devices that this process sees can read each other's memory.
void tell_peers(const Job& job) {
    gpu::Runtime& runtime = *job.placement.gpu;
    for (int device = 0; device < runtime.device_count(); ++device) {
        for (int peer = 0; peer < runtime.device_count(); ++peer) {
            if (peer == device) {
                continue;
            }
            bool can = false;
            gpu::Status status = runtime.can_access_peer(device, peer, can);
            Json record = {{"record", "peer"}, {"device", device}, {"peer", peer}, {"can", status.ok() && can}};
            if (status.ok() && can) {
                status = runtime.enable_peer_access(device, peer);
            }
            record["does"] = status.ok() && can;
            if (!status.ok()) {
                record["why_not"] = status.message();
            }
            write_record(record);
        }
    }
}

/// "direct", ...: how the layer moved the last message of this thread; empty without it.
std::string path_of_last_call() {
    static constexpr std::array kPaths = {"native",    "direct", "ccl",          "copied", "ring",
                                          "pipelined", "staged", "staged large", "refused"};
    const auto last = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "awaken_last_path"));
    const int path = last != nullptr ? last() : -1;
    return path >= 0 && static_cast<std::size_t>(path) < kPaths.size() ? kPaths[static_cast<std::size_t>(path)] : "";
}

/// The two ranks of a pair, with a buffer to send and one to receive on either side.
class Pair {
  public:
    Pair(const Job& job, const int peer, const Arguments& arguments)
        : _job(job),
          _peer(peer),
          _bytes(arguments.bytes),
          _samples(arguments.samples),
          _sent(make_buffer(job, BufferKind::device, arguments.bytes)),
          _received(make_buffer(job, BufferKind::device, arguments.bytes)) {
        _sent.write(pattern(job.rank, arguments.bytes));
    }

    /// Seconds for one message, the receiver having told that it is complete.
    double one_way(const bool sends) {
        return median_seconds(_samples, [&] {
            if (sends) {
                _mpi.run(message(Direction::send, _bytes));
                _mpi.run(message(Direction::receive, 0));
            } else {
                _mpi.run(message(Direction::receive, _bytes));
                _path = path_of_last_call();
                _mpi.run(message(Direction::send, 0));
            }
        });
    }

    /// Seconds for a message in each direction at once.
    double both_ways() {
        bench::Operations operations(2);
        return median_seconds(_samples, [&] {
            _mpi.start(operations, 0, message(Direction::receive, _bytes));
            _mpi.start(operations, 1, message(Direction::send, _bytes));
            _mpi.wait(operations, 0, 2);
        });
    }

    /// Seconds one way of a message of 8 bytes, by ping-pong.
    double small(const bool first) {
        constexpr std::size_t kBytes = 8;
        constexpr int kTurns = 100;
        const auto ping_pong = [&] {
            for (int turn = 0; turn < kTurns; ++turn) {
                for (const bool sends : {first, !first}) {
                    _mpi.run(message(sends ? Direction::send : Direction::receive, std::min(kBytes, _bytes)));
                }
            }
        };
        return median_seconds(_samples, ping_pong) / (2 * kTurns);
    }

    void blank() { _received.fill(std::byte{0xEE}); }
    [[nodiscard]] bool arrived() const { return holds(_received, pattern(_peer, _bytes)); }
    [[nodiscard]] const std::string& path() const noexcept { return _path; }

  private:
    [[nodiscard]] bench::MessageCall message(const Direction direction, const std::size_t bytes) const {
        const Buffer& buffer = direction == Direction::send ? _sent : _received;
        return {direction,
                bytes != 0 ? buffer.data() : nullptr,
                static_cast<bench::Count>(bytes),
                MPI_BYTE,
                _peer,
                kTag,
                _job.communicator};
    }

    bench::MpiCommunication _mpi{bench::reached_functions()};
    const Job& _job;
    int _peer;
    std::size_t _bytes;
    int _samples;
    Buffer _sent;
    Buffer _received;
    std::string _path;
};

/// Messages from rank `from` to rank `to`; the receiver tells.
void measure_pair(const Job& job, const int from, const int to, const Arguments& arguments) {
    const bool sends = job.rank == from;
    Pair pair(job, sends ? to : from, arguments);
    pair.blank();
    const double one_way = pair.one_way(sends);
    const bool arrived = sends || pair.arrived();
    pair.blank();
    const double both_ways = pair.both_ways();
    const bool both_arrived = pair.arrived();
    const double small = pair.small(sends);
    int sender_has = both_arrived ? 1 : 0;
    bench::MpiCommunication(bench::reached_functions())
        .run({sends ? Direction::send : Direction::receive, &sender_has, 1, MPI_INT, sends ? to : from, kTag,
              job.communicator});
    if (sends) {
        return;
    }
    write_record({{"record", "pair"},
                  {"from", from},
                  {"to", to},
                  {"bytes", arguments.bytes},
                  {"samples", arguments.samples},
                  {"bandwidth_GBps", gigabytes_per_second(arguments.bytes, one_way)},
                  {"both_GBps", gigabytes_per_second(2 * arguments.bytes, both_ways)},
                  {"latency_us", small * 1e6},
                  {"verified", arrived && both_arrived && sender_has != 0},
                  {"path", pair.path()}});
}

}  // namespace

bool all_have_gpus(const Job& job) {
    const int mine = job.no_gpu.empty() ? 1 : 0;
    const int all = bench::over_ranks(mine, MPI_MIN, job.communicator);
    if (all == 0 && job.rank == 0) {
        write_record({{"record", "no_gpu"}, {"why_not", mine != 0 ? "another rank has no GPU" : job.no_gpu}});
    }
    return all != 0;
}

void finish(const Job& job) {
    check_mpi(MPI_Barrier(job.communicator), "MPI_Barrier");
    if (job.rank == 0) {
        write_record({{"record", "done"}});
    }
}

void try_hardware(const Job& job, const Arguments& arguments) {
    if (all_have_gpus(job)) {
        const int before = (job.rank + job.ranks - 1) % job.ranks;
        const int next = (job.rank + 1) % job.ranks;
        Buffer own = make_buffer(job, BufferKind::device, arguments.bytes);
        own.write(pattern(job.rank, arguments.bytes));
        const Offer mine = make_offer(job, own);
        Offer theirs;
        check_mpi(MPI_Sendrecv(&mine, sizeof mine, MPI_BYTE, next, kTag, &theirs, sizeof theirs, MPI_BYTE, before, kTag,
                               job.communicator, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv");
        // One after another: what one measures is not to disturb another's.
        for (int turn = 0; turn < job.ranks; ++turn) {
            if (turn == job.rank) {
                if (job.ranks > 1) {
                    write_record(read_by_ipc(job, theirs, before, arguments));
                }
                write_record(host_path(job, arguments));
            }
            check_mpi(MPI_Barrier(job.communicator), "MPI_Barrier");
        }
        if (job.rank == 0) {
            tell_peers(job);
        }
    }
    finish(job);
}

void measure_pairs(const Job& job, const Arguments& arguments) {
    if (all_have_gpus(job)) {
        for (int from = 0; from < job.ranks; ++from) {
            for (int to = 0; to < job.ranks; ++to) {
                if (from != to && (job.rank == from || job.rank == to)) {
                    measure_pair(job, from, to, arguments);
                }
                check_mpi(MPI_Barrier(job.communicator), "MPI_Barrier");
            }
        }
    }
    finish(job);
}

}  // namespace awaken::probe
