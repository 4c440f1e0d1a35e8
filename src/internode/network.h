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
// Nothing here waits for layer code at the other side. A sender whose fragments are not taken copies the rest to host
// memory and gives it to the MPI. As long as its receiver is only late, the sender waits on, as for any message that
// the MPI does not buffer. But a receiver that waits in the MPI itself takes no fragments, and may be waiting for the
// sender; then the send is complete. Pings tell the two cases apart (protocol/reachability.h): the MPI of a receiver
// answers them without its layer. A nonblocking message proceeds in later calls of its process. When one of these is
// about to wait in the MPI itself, the layer copies the rest out first (call/waiting.h).
//
// The messages of a pair share one window (protocol/flow_window.h). A receiver need not take messages in the order in
// which they were sent. So when it has found an RTS, it says that it has come for the message (come).
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
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "gpu/gpu.h"
#include "ipc/message.h"
#include "mpi/native.h"
#include "protocol/flow_window.h"
#include "protocol/reachability.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/pinned_pool.h"
#include "transfer/tuning.h"

namespace awaken::AWAKEN_ABI {

class Network;

/// Part of a message: its place in host memory, its copy from or to the GPU, and its transfer by the MPI.
struct Fragment {
    std::size_t at = 0;  ///< in the message
    std::size_t bytes = 0;
    protocol::FlowWindow::Credit credit;
    transfer::StagingBlock block;
    /// In the block, or in the receiver's own host memory. Null: the bytes are not wanted.
    std::byte* place = nullptr;
    transfer::DeviceCopies::Copy copy;
    MPI_Request request = MPI_REQUEST_NULL;
    trace::Stretch traced;  ///< while the MPI has the fragment
};

/// A message to another node. One thread at a time uses it, in calls of the program.
class PipelinedSend final : public ipc::OutgoingMessage {
  public:
    PipelinedSend(Network& network, protocol::FlowWindow& flow, int peer, std::uint32_t id, const ipc::Buffer& from,
                  std::size_t fragment_bytes);
    ~PipelinedSend() override;
    PipelinedSend(const PipelinedSend&) = delete;
    PipelinedSend& operator=(const PipelinedSend&) = delete;

    [[nodiscard]] const std::byte* rts() const noexcept override { return _message.data(); }
    [[nodiscard]] std::size_t rts_length() const noexcept override { return ipc::rts_length(_id); }
    [[nodiscard]] report::Path path() const noexcept override { return report::Path::pipelined; }
    void copy_out() override;
    /// Fragments may follow.
    void posted(bool waits) noexcept override;
    void withdraw() noexcept override;
    /// When a call waits, and after tuning.large_watch without progress, the layer copies out more and more of the
    /// rest.
    [[nodiscard]] bool advance(ipc::Patience patience) override;
    void go_on() noexcept override;
    /// If it is the call that started the message, the layer gives the MPI as many fragments as it can spare pinned
    /// memory for, which mostly is all. advance() throws the errors.
    void leave() noexcept override;
    /// While the receiver takes fragments and there is no pinned memory for the next one, the layer waits for pinned
    /// memory and takes no ordinary memory.
    [[nodiscard]] bool flush_to_native() noexcept override;

  private:
    friend class Network;
    using Clock = std::chrono::steady_clock;
    void step(std::size_t window);
    void start_fragment(protocol::FlowWindow::Credit credit, bool pinned = true);
    void copy_rest_out();
    template <class Copy>
    void give_to_mpi(const Copy& copy) noexcept;
    void finish() noexcept;
    void end() noexcept override;
    void fail(Error error) noexcept;
    void lose() noexcept;
    [[nodiscard]] bool all_copied() const noexcept { return _started == _from.bytes && _copied == _fragments.size(); }
    [[nodiscard]] bool all_sent() const noexcept { return _posted && all_copied() && _sent == _fragments.size(); }
    [[nodiscard]] bool may_be_left(std::chrono::nanoseconds watch);
    /// A small message that an MPI would buffer: it must not wait for its receiver.
    [[nodiscard]] bool is_wrapped() const noexcept { return _from.info.kind == gpu::MemoryKind::host; }

    Network& _network;
    protocol::FlowWindow& _flow;
    const int _peer;
    const std::uint32_t _id;
    const ipc::Buffer _from;
    const std::size_t _fragment_bytes;
    std::array<std::byte, ipc::kLongestRts> _message{};
    std::deque<Fragment> _fragments;  ///< first the sent ones, then the copied ones, then those being copied
    std::size_t _started = 0;         ///< bytes whose copy was started
    std::size_t _copied = 0;          ///< fragments of _fragments that are in host memory
    std::size_t _sent = 0;            ///< fragments of _fragments that the MPI has been given
    bool _posted = false;
    bool _left = false;  ///< the call that started the message is over
    bool _free = false;
    bool _ended = false;
    std::optional<Error> _error;
    Clock::time_point _progress{};
};

/// A message from another node. One thread at a time uses it, in calls of the program.
class PipelinedRecv final : public ipc::IncomingMessage {
  public:
    /// The message is in the flow window already. `fetching`: the number of receives from its sender that are not over.
    PipelinedRecv(Network& network, protocol::FlowWindow& flow, int peer, std::uint32_t id, std::size_t size,
                  std::size_t fragment_bytes, const ipc::Buffer& into, std::atomic<std::size_t>& fetching);
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
    void receive_fragment(protocol::FlowWindow::Credit credit);
    void arrived(Fragment fragment, const MPI_Status& status);

    Network& _network;
    protocol::FlowWindow& _flow;
    const int _peer;
    const std::uint32_t _id;
    const std::size_t _size, _fragment_bytes;
    const ipc::Buffer _into;
    const std::size_t _wanted;
    std::atomic<std::size_t>& _from_peer;  ///< receives from the peer that are not over
    std::deque<Fragment> _receiving, _copying;
    std::size_t _asked_for = 0;
    bool _over = false;
    bool _refused = false;  ///< the sender or the MPI has given up
    std::optional<Error> _error;
};

class Network final : public ipc::Transport {
  public:
    /// `others_wait`: tells whether another thread waits in the MPI, so that a message must not depend on later calls.
    Network(const Native& native, transfer::PinnedPool& pool, std::function<bool()> others_wait);
    ~Network() override;
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
    /// Some messages have fragments that only calls of this process give to the MPI.
    [[nodiscard]] bool has_pending_fragments() const noexcept { return _unfinished.load() != 0; }
    /// Whether calls of this process must move fragments: some messages need them to give fragments to the MPI, or to
    /// take fragments from it. Also true for a while after a sender has asked where this process is, since that
    /// sender's message may be here unseen.
    [[nodiscard]] bool moves_fragments() noexcept {
        if (_turns.load(std::memory_order_relaxed) > 0) {
            _turns.fetch_sub(1, std::memory_order_relaxed);
            return true;
        }
        return has_pending_fragments() || _fetching.load() != 0;
    }
    /// From now on every receive of this process is prepared for an RTS.
    void open() noexcept { _open.store(true, std::memory_order_release); }
    /// Call before the MPI's finalisation: ends what proceeds without calls, and takes part in ending it everywhere.
    void stop();

    /// Called often. Looks now and then whether another process has asked for something: often enough that no sender
    /// takes this process for one that waits in the MPI (protocol/reachability.h), and seldom enough to cost nothing
    /// noticeable.
    void tick() noexcept {
        if (_has_gpu.load(std::memory_order_relaxed)) {
            static thread_local protocol::Reachability::Clock::time_point last{};
            if (const auto now = protocol::Reachability::Clock::now();
                now - last > protocol::Reachability::kBetweenLooks) {
                last = now;
                poll();
            }
        }
    }
    /// Receives the notices of other processes, and completes what was left to the MPI. False when another thread is
    /// doing that.
    bool poll() noexcept;

    /// The MPI takes device memory itself, as the MPI or the user says: messages are left to it.
    [[nodiscard]] bool passes_through() const noexcept { return _passes_through.load(std::memory_order_acquire); }

    // A peer is a rank in MPI_COMM_WORLD.
    void describe(int peer, const gpu::PointerInfo& memory, protocol::SendFacts& facts) const noexcept override;
    [[nodiscard]] std::shared_ptr<ipc::OutgoingMessage> start_send(int peer, const ipc::Buffer& from,
                                                                   const protocol::SendPaths& paths) override;
    [[nodiscard]] bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) override {
        return _has_gpu.load(std::memory_order_acquire) && _copies->can_move(device_for(info), memory);
    }
    [[nodiscard]] std::shared_ptr<ipc::OutgoingMessage> start_failed(int peer, std::size_t bytes,
                                                                     const Error& error) override;
    /// False when an RTS of that length is under way, or too few lengths are left for RTS messages.
    [[nodiscard]] bool may_go_plain(int peer, std::size_t length) override;
    [[nodiscard]] std::shared_ptr<ipc::OutgoingMessage> wrap(int peer, const void* packed, std::size_t bytes) override;

    [[nodiscard]] bool begins_like_rts(const std::byte* message) const noexcept override;
    [[nodiscard]] bool is_rts(const std::byte* message, std::size_t length) const noexcept override;
    [[nodiscard]] std::shared_ptr<ipc::IncomingMessage> start_receive(const std::byte* message, std::size_t length,
                                                                      const ipc::Buffer& into) override;
    /// Knows what senders have announced. poll() takes in more announcements.
    [[nodiscard]] ipc::TrueSize size_of(int peer, std::size_t length) const noexcept override;

  private:
    friend class PipelinedSend;
    friend class PipelinedRecv;
    using Secret = std::array<std::uint64_t, 2>;
    using Bits = std::array<std::uint64_t, ipc::kSlots / 64>;  ///< one bit for each length
    static_assert(ipc::kSlots % 64 == 0);

    /// What processes tell each other, on a tag of its own. "I" is the process that sends the notice.
    struct Notice {
        enum Kind : std::uint32_t {
            query,      ///< I want to send RTS messages; I have sent plain messages of these lengths (words)
            ready,      ///< you may; begin each RTS with this secret (words)
            announce,   ///< the next message of length `id` is an RTS, for `bytes` bytes
            plain,      ///< messages of length `id` never are RTS messages
            come,       ///< I am receiving the message `id`
            taken,      ///< I have the message `id`
            listening,  ///< I have a receive for another ping; `bytes`: how many of your messages I am receiving
            deaf        ///< I have no receive for another ping, and cannot start one
        };
        std::uint32_t kind;
        std::uint32_t id;
        std::uint64_t bytes;
        std::uint64_t generation;
        Bits words;
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
    static_assert(sizeof(Rts) <= ipc::kShortestRts);

    static constexpr std::size_t kPings = protocol::Reachability::kPings;

    /// This process's messages to another process, and those from it.
    struct Sending {
        protocol::FlowWindow flow;
        bool asked = false, ready = false;
        Secret secret{};
        Bits plain{};      ///< lengths of plain messages that were sent
        Bits under_way{};  ///< lengths of RTS messages whose receivers do not have the message yet
        std::uint64_t generation = 0;
        std::uint32_t next = 0;
        protocol::Reachability receiver;
        MPI_Request ping = MPI_REQUEST_NULL;
    };
    struct Receiving {
        struct Announced {
            std::uint64_t generation = 0;  ///< of the newest announcement
            std::uint64_t taken = 0;       ///< of the newest announcement whose RTS was received
            std::uint64_t bytes = 0;
        };
        protocol::FlowWindow flow;
        std::atomic<std::size_t> fetching{0};
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
    void complete_left();
    [[nodiscard]] bool listen_to(int peer, MPI_Request& ping);
    [[nodiscard]] bool listen_to(int peer);
    void listen_again();
    void listen_again(std::size_t index);
    void asks_mpi();
    void complete_pings();
    [[nodiscard]] std::shared_ptr<PipelinedSend> make(int peer, const ipc::Buffer& from, std::size_t fragment_bytes);

    [[nodiscard]] bool wait_for(MPI_Request& request, std::chrono::nanoseconds limit);
    void send_fragment(int peer, std::uint32_t id, Fragment& fragment);
    void receive_fragment(int peer, std::uint32_t id, Fragment& fragment);
    [[nodiscard]] bool is_complete(Fragment& fragment, MPI_Status& status) const;
    /// Whether the process `peer`, which has taken no fragment since `since`, waits in the MPI
    /// (protocol/reachability.h).
    [[nodiscard]] bool waits_in_mpi(int peer, protocol::FlowWindow::Clock::time_point since,
                                    std::chrono::nanoseconds time);
    /// Keeps fragments that the MPI still has, and for which no call waits.
    void keep(std::deque<Fragment> fragments) noexcept;
    void give_back(int peer, std::uint32_t id) noexcept;
    void taken(int peer, std::uint32_t id) noexcept;
    [[nodiscard]] transfer::DeviceCopies::End end_of(const Fragment& fragment) const noexcept;
    [[nodiscard]] int device_for(const gpu::PointerInfo& info) const noexcept;

    const Native& _native;
    transfer::PinnedPool& _pool;
    const std::function<bool()> _others_wait;
    MPI_Comm _comm = MPI_COMM_NULL;
    MPI_Request _duplicating = MPI_REQUEST_NULL;
    int _rank = -1, _size = 0;
    Secret _secret{};
    std::atomic<bool> _usable{false};
    std::atomic<bool> _has_gpu{false};
    std::atomic<bool> _open{false};
    std::atomic<bool> _passes_through{false};
    std::atomic<std::size_t> _unfinished{0};  ///< sends of which the MPI does not have all yet
    std::atomic<std::size_t> _fetching{0};    ///< receives that are not over
    std::atomic<int> _turns{0};               ///< looks at all receives still to do, since a sender has asked
    bool _alone = false;                      ///< not every rank runs the layer
    bool _nameless = false;                   ///< this process has no secret
    gpu::Runtime* _runtime = nullptr;
    transfer::Tuning _tuning;
    transfer::DeviceCopies* _copies = nullptr;

    mutable std::mutex _mutex;  ///< guards everything below
    std::unordered_map<int, Sending> _sending;
    std::unordered_map<int, Receiving> _receiving;  ///< from processes that have sent a query
    std::vector<int> _unanswered;
    std::list<Outgoing> _outgoing;                          ///< the MPI reads the notices where they lie
    std::vector<int> _heard;                                ///< processes for whose pings there are receives
    std::vector<MPI_Request> _listening;                    ///< the oldest such receive of each
    std::vector<int> _answered;                             ///< indices of the receives that got a ping
    std::vector<std::vector<MPI_Request>> _listening_next;  ///< younger receives; the MPI completes the oldest first
    unsigned _questions = 0;                                ///< to the MPI since the last look for pings
    std::size_t _pings = 0;                                 ///< pings that this process has under way
    std::deque<Fragment> _left;
    std::size_t _left_bytes = 0;
};

}  // namespace awaken::AWAKEN_ABI
