// SPDX-License-Identifier: Apache-2.0
// Messages to processes of other nodes: the MPI carries them in fragments, while both sides copy.
//
// A large message of device memory travels as an RTS in its place, and as fragments on a communicator of the layer's
// own. While the network carries one fragment, the sender copies the next out of its GPU, and the receiver copies the
// one before into its GPU.
//
// The processes agree on who may do that without waiting for each other. The communicator is duplicated from
// MPI_COMM_WORLD when MPI comes up; its existence proves that every rank runs the layer. A sender then asks its
// receiver once (query). It sends RTS messages only after the receiver has answered (ready) that each of its receives
// is prepared for one. Until then, and wherever anything is missing, messages travel as without this file.
//
// A send is complete when the MPI has its bytes. The call that starts it copies them to host memory, fragment by
// fragment, and gives each to the MPI. The network then carries the first while the last is still being copied. A few
// fragments are under way at a time, in pinned memory. Where none ends for some time, because the receiver is late, the
// rest goes to ordinary memory. So time decides where bytes lie, and nothing waits for the layer of the receiver.
// Nothing of the message is left for later calls of the sender, wherever it waits next.
//
// A probe sees only the length of an RTS. So the length says which message it is (as in ipc/offers.h), and the sender
// tells the size beforehand (announce). When a plain message happens to have such a length, the sender tells that as
// well (plain), and never again sends that receiver an RTS of that length. So the receiver can tell the two apart,
// whatever overtakes what on the way.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "gpu/gpu.h"
#include "mpi/native.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/pinned_pool.h"
#include "transfer/tuning.h"
#include "transport/transport.h"

namespace awaken::AWAKEN_ABI {

class Network;

/// The fragments of one process's messages to another that are under way, as one of the two sees them. Thread-safe.
/// Outlives them.
class Flow {
  public:
    using Clock = std::chrono::steady_clock;
    struct Ended {
        void operator()(Flow* flow) const noexcept;
    };
    /// Stands for one fragment that is under way, until it is destroyed.
    using Share = std::unique_ptr<Flow, Ended>;

    [[nodiscard]] Share begin() noexcept;
    [[nodiscard]] std::size_t count() const noexcept { return _count.load(std::memory_order_acquire); }
    /// How long some have been under way of which none has ended.
    [[nodiscard]] Clock::duration stands_still() const noexcept;

  private:
    std::atomic<std::size_t> _count{0};
    std::atomic<Clock::rep> _progress{0};  ///< when one last ended, or the first began
};

/// Part of a message: its place in host memory, its copy from or to the GPU, and its transfer by the MPI.
struct Fragment {
    std::size_t at = 0;  ///< in the message
    std::size_t bytes = 0;
    Flow::Share share;
    transfer::StagingBlock block;
    /// In the block, or in the receiver's own host memory. Null: the bytes are not wanted.
    std::byte* place = nullptr;
    transfer::DeviceCopies::Copy copy;
    MPI_Request request = MPI_REQUEST_NULL;
    trace::Stretch traced;  ///< while the MPI has the fragment
};

/// A message to another node. One thread at a time uses it, in the call that starts the message.
class PipelinedSend final : public transport::OutgoingMessage {
  public:
    PipelinedSend(Network& network, Flow& flow, int peer, std::uint32_t id, const transport::Buffer& from,
                  std::size_t fragment_bytes);
    ~PipelinedSend() override;
    PipelinedSend(const PipelinedSend&) = delete;
    PipelinedSend& operator=(const PipelinedSend&) = delete;

    [[nodiscard]] const std::byte* rts() const noexcept override { return _message.data(); }
    [[nodiscard]] std::size_t rts_length() const noexcept override { return transport::rts_length(_id); }
    [[nodiscard]] report::Path path() const noexcept override { return report::Path::pipelined; }
    void copy_out() override;
    /// Fragments may follow.
    void posted(bool waits) noexcept override;
    void withdraw() noexcept override;
    /// True when the MPI has all of the message.
    [[nodiscard]] bool advance(transport::Patience patience) override;
    [[nodiscard]] bool needs_calls() const noexcept override { return !_free; }
    void leave() noexcept override {}

  private:
    friend class Network;
    void step();
    [[nodiscard]] bool start_fragment();
    void copy_fragment(bool pinned);
    void fail(Error error) noexcept;
    void lose() noexcept;

    Network& _network;
    Flow& _flow;
    const int _peer;
    const std::uint32_t _id;
    const transport::Buffer _from;
    const std::size_t _fragment_bytes;
    std::array<std::byte, transport::kLongestRts> _message{};
    std::deque<Fragment> _fragments;  ///< on their way to host memory, or there; the MPI has none of them
    std::size_t _started = 0;         ///< bytes whose copy was started
    bool _posted = false;
    bool _free = false;
    std::optional<Error> _error;
};

/// A message from another node. One thread at a time uses it, in calls of the program.
class PipelinedRecv final : public transport::IncomingMessage {
  public:
    PipelinedRecv(Network& network, Flow& flow, int peer, std::uint32_t id, std::size_t size,
                  std::size_t fragment_bytes, const transport::Buffer& into);
    ~PipelinedRecv() override;
    PipelinedRecv(const PipelinedRecv&) = delete;
    PipelinedRecv& operator=(const PipelinedRecv&) = delete;

    [[nodiscard]] bool advance() noexcept override;
    [[nodiscard]] std::size_t size() const noexcept override { return _size; }
    [[nodiscard]] const std::optional<Error>& error() const noexcept override { return _error; }
    [[nodiscard]] report::Path path() const noexcept override { return report::Path::pipelined; }

  private:
    void step();
    void end() noexcept;
    void receive_fragment();
    void arrived(Fragment fragment, const MPI_Status& status);

    Network& _network;
    Flow& _flow;
    const int _peer;
    const std::uint32_t _id;
    const std::size_t _size, _fragment_bytes;
    const transport::Buffer _into;
    const std::size_t _wanted;
    std::deque<Fragment> _receiving, _copying;
    std::size_t _asked_for = 0;
    bool _over = false;
    bool _refused = false;  ///< the sender or the MPI has given up
    std::optional<Error> _error;
};

class Network final : public transport::Transport {
  public:
    Network(const Native& native, transfer::PinnedPool& pool) : _native(native), _pool(pool) {}
    ~Network() override = default;
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    /// Call after the MPI's initialisation, in each rank of a job of several nodes, with a GPU or without.
    void start();
    /// The process has found its GPU runtime.
    void use(gpu::Runtime& runtime, const transfer::Tuning& tuning, transfer::DeviceCopies& copies,
             bool mpi_takes_device_memory);
    /// Whether every rank of the job runs the layer. All ranks that call get the same answer. The call waits for the
    /// other ranks; that takes long only once, and only where some do not run the layer.
    [[nodiscard]] bool everybody_has_the_layer();
    /// Null as long as there is no GPU runtime.
    [[nodiscard]] transfer::DeviceCopies* copies() const noexcept {
        return _has_gpu.load(std::memory_order_acquire) ? _copies : nullptr;
    }
    /// Whether messages come in, which they do only in calls of this process.
    [[nodiscard]] bool takes_fragments() const noexcept { return _fetching.load() != 0; }
    /// From now on every receive of this process is prepared for an RTS.
    void open() noexcept { _open.store(true, std::memory_order_release); }
    /// Call before the MPI's finalisation: ends what proceeds without calls, and takes part in ending it everywhere.
    void stop();

    /// Called often. Looks now and then whether another process has asked for something: seldom enough to cost nothing
    /// noticeable.
    void tick() noexcept {
        if (_has_gpu.load(std::memory_order_relaxed)) {
            constexpr std::chrono::microseconds kBetweenLooks{20};
            static thread_local Flow::Clock::time_point last{};
            if (const auto now = Flow::Clock::now(); now - last > kBetweenLooks) {
                last = now;
                poll();
            }
        }
    }
    /// Receives the notices of other processes, and completes what was left to the MPI. False when another thread is
    /// doing that.
    bool poll() noexcept override;

    /// The MPI takes device memory itself, as the MPI or the user says: messages are left to it.
    [[nodiscard]] bool passes_through() const noexcept { return _passes_through.load(std::memory_order_acquire); }

    // A peer is a rank in MPI_COMM_WORLD.
    void describe(int peer, const gpu::PointerInfo& memory, protocol::SendFacts& facts) noexcept override;
    [[nodiscard]] std::shared_ptr<transport::OutgoingMessage> start_send(int peer, const transport::Buffer& from,
                                                                         const protocol::SendPaths& paths) override;
    [[nodiscard]] bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) override {
        return _has_gpu.load(std::memory_order_acquire) && _copies->can_move(device_for(info), memory);
    }
    [[nodiscard]] std::shared_ptr<transport::OutgoingMessage> start_failed(int peer, std::size_t bytes,
                                                                           const Error& error) override;
    /// False when an RTS of that length is under way, or too few lengths are left for RTS messages.
    [[nodiscard]] bool may_go_plain(int peer, std::size_t length) override;
    [[nodiscard]] std::shared_ptr<transport::OutgoingMessage> wrap(int peer, const void* packed,
                                                                   std::size_t bytes) override;

    [[nodiscard]] bool begins_like_rts(const std::byte* message) const noexcept override;
    [[nodiscard]] bool is_rts(const std::byte* message, std::size_t length) const noexcept override;
    [[nodiscard]] std::shared_ptr<transport::IncomingMessage> start_receive(const std::byte* message,
                                                                            std::size_t length,
                                                                            const transport::Buffer& into) override;
    /// Knows what senders have announced. poll() takes in more announcements.
    [[nodiscard]] transport::TrueSize size_of(int peer, std::size_t length) const noexcept override;

  private:
    friend class PipelinedSend;
    friend class PipelinedRecv;
    using Secret = std::array<std::uint64_t, 2>;
    using Bits = std::array<std::uint64_t, transport::kSlots / 64>;  ///< one bit for each length
    static_assert(transport::kSlots % 64 == 0);

    /// What processes tell each other, on a tag of its own. "I" is the process that sends the notice.
    struct Notice {
        enum Kind : std::uint32_t {
            query,     ///< I want to send RTS messages; I have sent plain messages of these lengths (words)
            ready,     ///< you may; begin each RTS with this secret (words)
            announce,  ///< the next message of length `id` is an RTS, for `bytes` bytes
            plain,     ///< messages of length `id` never are RTS messages
            taken      ///< I have the message `id`
        };
        std::uint32_t kind = query;
        std::uint32_t id = 0;
        std::uint64_t bytes = 0;
        std::uint64_t generation = 0;
        Bits words{};
    };
    struct Outgoing {
        Notice notice;
        MPI_Request request = MPI_REQUEST_NULL;
    };
    /// The RTS, which takes the message's place.
    struct Rts {
        std::uint64_t magic;
        Secret secret;  ///< the receiver's
        std::uint32_t sender;
        std::uint32_t id;
        std::uint64_t bytes;
        std::uint64_t fragment_bytes;
        std::uint64_t generation;
    };
    static_assert(sizeof(Rts) <= transport::kShortestRts);

    /// This process's messages to another process, and those from it.
    struct Sending {
        Flow flow;
        bool asked = false, ready = false;
        Secret secret{};
        Bits plain{};      ///< lengths of plain messages that were sent
        Bits under_way{};  ///< lengths of RTS messages whose receivers do not have the message yet
        std::uint64_t generation = 0;
        std::uint32_t next = 0;
    };
    struct Receiving {
        struct Announced {
            std::uint64_t generation = 0;  ///< of the newest announcement
            std::uint64_t taken = 0;       ///< of the newest announcement whose RTS was received
            std::uint64_t bytes = 0;
        };
        Flow flow;
        Bits plain{};
        bool answered = false;
        std::unordered_map<std::uint32_t, Announced> announced;
    };

    [[nodiscard]] static bool has(const Bits& bits, const std::uint32_t id) noexcept {
        return (bits[id / 64] >> (id % 64) & 1) != 0;
    }
    static void set(Bits& bits, const std::uint32_t id) noexcept { bits[id / 64] |= std::uint64_t{1} << (id % 64); }
    static void clear(Bits& bits, const std::uint32_t id) noexcept {
        bits[id / 64] &= ~(std::uint64_t{1} << (id % 64));
    }

    // The caller holds the lock.
    void look();
    void hear(int peer, const Notice& notice);
    void tell(int peer, const Notice& notice);
    void answer();
    void mark_length_used(int peer, Sending& sending, std::uint32_t id);
    void complete_outgoing();
    void complete_sent();
    [[nodiscard]] std::shared_ptr<PipelinedSend> make(int peer, const transport::Buffer& from,
                                                      std::size_t fragment_bytes);

    /// Makes the send's RTS ready to go: `begin` starts to copy. Withdraws the send when that fails.
    [[nodiscard]] static std::shared_ptr<PipelinedSend> begun(std::shared_ptr<PipelinedSend> send,
                                                              void (PipelinedSend::*begin)());
    /// All ranks have taken part in the duplication.
    void duplicated();
    [[nodiscard]] bool wait_for(MPI_Request& request, std::chrono::nanoseconds limit);
    void send_fragment(int peer, std::uint32_t id, Fragment& fragment);
    void receive_fragment(int peer, std::uint32_t id, Fragment& fragment);
    [[nodiscard]] bool is_complete(Fragment& fragment, MPI_Status& status) const;
    /// Keeps a fragment that the MPI has, until the MPI has sent it.
    void keep(Fragment fragment) noexcept;
    void give_back(int peer, std::uint32_t id) noexcept;
    void taken(int peer, std::uint32_t id) noexcept;
    [[nodiscard]] transfer::DeviceCopies::End end_of(const Fragment& fragment) const noexcept;
    [[nodiscard]] int device_for(const gpu::PointerInfo& info) const noexcept;

    const Native& _native;
    transfer::PinnedPool& _pool;
    MPI_Comm _comm = MPI_COMM_NULL;
    MPI_Request _duplicating = MPI_REQUEST_NULL;
    int _rank = -1, _size = 0;
    Secret _secret{};
    std::atomic<bool> _usable{false};
    std::atomic<bool> _has_gpu{false};
    std::atomic<bool> _open{false};
    std::atomic<bool> _passes_through{false};
    std::atomic<std::size_t> _fetching{0};  ///< receives that are not over
    bool _alone = false;                    ///< not every rank runs the layer
    bool _nameless = false;                 ///< this process has no secret
    gpu::Runtime* _runtime = nullptr;
    transfer::Tuning _tuning;
    transfer::DeviceCopies* _copies = nullptr;

    mutable std::mutex _mutex;  ///< guards everything below
    std::unordered_map<int, Sending> _sending;
    std::unordered_map<int, Receiving> _receiving;  ///< from processes that have sent a query
    std::vector<int> _unanswered;
    std::list<Outgoing> _outgoing;  ///< the MPI reads the notices where they lie
    std::deque<Fragment> _sent;     ///< the MPI has them
    std::size_t _sent_bytes = 0;
};

}  // namespace awaken::AWAKEN_ABI
