// SPDX-License-Identifier: Apache-2.0
// The hardware's limit for a message: a GPU copies between its own buffer and one of another rank, which IPC has mapped
// for it. Messages are fetched by the receiver; what a one-sided operation writes is brought by its origin.
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "mpi/benchmark.h"
#include "mpi/engine.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {
namespace {

constexpr const char* kLeaveOutRaw = "leave raw out of --compare";

/// What a rank tells the others of its buffer; travels as bytes.
struct Offer {
    gpu::IpcMemoryHandle handle;
    std::uint64_t offset = 0;   ///< of the data from where the handle's mapping starts
    std::uint64_t address = 0;  ///< in its own process
    std::int64_t process = 0;
    std::array<char, 40> system = {};  ///< of the running kernel: the same for all processes that can share memory
};

std::array<char, 40> running_system() {
    std::array<char, 40> text = {};
    std::ifstream("/proc/sys/kernel/random/boot_id").read(text.data(), text.size() - 1);
    return text;
}

class IpcCopy final : public RawCopy {
  public:
    explicit IpcCopy(const Environment& environment)
        : _gpu(environment.gpu), _device(environment.device), _ranks(environment.ranks) {
        std::optional<Error> problem;
        if (!_gpu.is_present() || _device < 0) {
            problem.emplace("a raw copy is one between GPUs, and this run uses none",
                            "choose one with -d cuda or -d rocm");
        } else if (const gpu::Status made = _gpu.create_stream(_device, false, _stream); !made.ok()) {
            problem.emplace("no stream for raw copies: " + made.message(), "see that the GPU driver works");
        }
        try {
            agree_to_run(environment.communicator, problem);
        } catch (const Unavailable&) {
            static_cast<void>(_gpu.destroy_stream(_stream));
            throw;
        }
    }
    ~IpcCopy() override {
        close_all();
        static_cast<void>(_gpu.destroy_stream(_stream));
    }
    IpcCopy(const IpcCopy&) = delete;
    IpcCopy& operator=(const IpcCopy&) = delete;

    void prepare(MPI_Comm communicator, const Buffer& offered, const Buffer& own) override {
        // Opening mappings anew for each block of copies would make the first of them the slowest.
        const int same = !_peers.empty() && _offered == offered.data() && _own == own.data() ? 1 : 0;
        if (over_ranks(same, MPI_MIN, communicator) != 0) {
            return;
        }
        close_all();
        Offer mine;
        std::optional<Error> problem = offer(offered, own, mine);
        agree_to_run(communicator, problem);
        std::vector<Offer> offers(static_cast<std::size_t>(_ranks));
        check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, offers.data(), sizeof mine, MPI_BYTE, communicator),
                  "MPI_Allgather");
        problem = open(mine, offers);
        try {
            agree_to_run(communicator, problem);
        } catch (const Unavailable&) {
            close_all();
            throw;
        }
        _offered = offered.data();
        _own = own.data();
    }

    void release() noexcept override { close_all(); }

    void pull(const int peer, const std::size_t bytes, const std::size_t count) override {
        copy(_own, _peers[static_cast<std::size_t>(peer)].data, bytes, count);
    }

    void push(const int peer, const std::size_t bytes, const std::size_t count) override {
        copy(_peers[static_cast<std::size_t>(peer)].data, _own, bytes, count);
    }

    [[nodiscard]] std::string description() const override {
        return "a GPU copying between its buffer and the other rank's (IPC)";
    }

  private:
    /// A peer's buffer as this process reaches it.
    struct Peer {
        void* data = nullptr;
        void* mapping = nullptr;  ///< null in the process that owns the buffer
    };

    static void check(const gpu::Status& status) {
        if (!status.ok()) {
            throw Error("a raw copy failed: " + status.message(), "see that the GPU driver works");
        }
    }

    void copy(void* const destination, const void* const source, const std::size_t bytes, const std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            check(_gpu.copy(destination, source, bytes, _stream));
        }
        check(_gpu.synchronize_stream(_stream));
    }

    std::optional<Error> offer(const Buffer& offered, const Buffer& own, Offer& mine) const {
        for (const Buffer* const buffer : {&offered, &own}) {
            if (buffer->kind() != BufferKind::device) {
                return Error(std::string("raw copies are between device buffers, and a buffer is ") +
                                 to_string(buffer->kind()) + " memory",
                             "use device buffers (-d cuda, -d rocm, or D D)");
            }
        }
        std::size_t offset = 0;
        if (const gpu::Status status = _gpu.ipc_export(offered.data(), mine.handle, offset); !status.ok()) {
            return Error("a buffer cannot be shared with other processes: " + status.message(), kLeaveOutRaw);
        }
        mine.offset = offset;
        mine.address = reinterpret_cast<std::uintptr_t>(offered.data());
        mine.process = ::getpid();
        mine.system = running_system();
        return std::nullopt;
    }

    std::optional<Error> open(const Offer& mine, const std::vector<Offer>& offers) {
        _peers.resize(offers.size());
        for (std::size_t rank = 0; rank < offers.size(); ++rank) {
            const Offer& theirs = offers[rank];
            Peer& peer = _peers[rank];
            if (theirs.system != mine.system) {
                return Error(
                    "rank " + std::to_string(rank) + " is on another machine, whose memory no GPU here can read",
                    kLeaveOutRaw);
            }
            if (theirs.process == mine.process) {
                peer.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(theirs.address));
                continue;
            }
            if (const gpu::Status status = _gpu.ipc_open(theirs.handle, _device, peer.mapping); !status.ok()) {
                return Error("the buffer of rank " + std::to_string(rank) + " cannot be mapped: " + status.message(),
                             kLeaveOutRaw);
            }
            peer.data = static_cast<std::byte*>(peer.mapping) + theirs.offset;
        }
        return std::nullopt;
    }

    void close_all() noexcept {
        for (const Peer& peer : _peers) {
            static_cast<void>(_gpu.ipc_close(peer.mapping));
        }
        _peers.clear();
    }

    gpu::Runtime& _gpu;
    const int _device;
    const int _ranks;
    gpu::StreamHandle _stream;
    std::vector<Peer> _peers;        ///< by rank
    const void* _offered = nullptr;  ///< this rank's buffers of the last prepare()
    void* _own = nullptr;
};

}  // namespace

std::unique_ptr<RawCopy> make_raw(const Environment& environment) {
    return std::make_unique<IpcCopy>(environment);
}

}  // namespace awaken::bench
