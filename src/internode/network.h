// Messages to processes of other nodes: in fragments through the MPI, copied on both sides meanwhile.
//
// A large message of device memory leaves as an RTS in its place, and as fragments on a communicator of the layer's
// own: while one fragment is on the network, the next is copied out of the sender's GPU and the one before into the
// receiver's.
//
// Who may do that is agreed without asking anybody to wait. The communicator is duplicated from MPI_COMM_WORLD when MPI
// comes up; that it exists says that every rank runs the layer. A sender then asks its receiver once (query), and sends
// RTS messages only after that one has answered (ready) that each of its receives is prepared for one. Until then, and
// wherever anything is missing, messages travel as without this.
//
// Nothing here waits for layer code at the other side: a sender whose fragments do not get away copies the rest to host
// memory and gives it to the MPI. It waits on, as for any message that the MPI does not buffer, as long as its receiver
// is only late; but a receiver that waits in the MPI itself takes no fragments, and may be waiting for the sender,
// which is done then. Which of the two it is, pings tell (protocol/reachability.h), which the MPI of a receiver answers
// without its layer. A nonblocking message goes on in later calls of its process; when one of these is about to wait in
// the MPI itself, the rest is copied out first (call/waiting.h).
//
// Messages of a pair share one window (protocol/flow_window.h). A receiver that has found an RTS says so (come),
// since it need not take messages in the order in which they were sent.
//
// A probe sees nothing of an RTS but its length, which therefore says which message it is (as in ipc/offers.h), and
// the sender tells the size beforehand (announce). A message that happens to have such a length is told as well
// (plain), and no RTS to that receiver ever has that length again: so each of the two can be told from the other,
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
#include "ipc/offers.h"
#include "mpi/native.h"
#include "protocol/flow_window.h"
#include "protocol/reachability.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/packer.h"
#include "transfer/pinned_pool.h"
#include "transfer/tuning.h"

namespace awaken::AWAKEN_ABI {

class Network;

/// Part of a message: its place in host memory, its copy from or to the GPU, and its way through the MPI.
struct Fragment {
    std::size_t at = 0;  ///< in the message
    std::size_t bytes = 0;
    protocol::FlowWindow::Credit credit;
    transfer::StagingBlock block;
    /// In the block, or in a receiver's own host memory; null: nobody wants the bytes.
    std::byte* place = nullptr;
    transfer::DeviceCopies::Copy copy;
    MPI_Request request = MPI_REQUEST_NULL;
    trace::Stretch traced;  ///< while the MPI has it
};

/// A message on its way to another node. Used by one thread at a time, in calls of the program's.
class PipelinedSend {
  public:
    PipelinedSend(Network& network, protocol::FlowWindow& flow, int peer, std::uint32_t id, const void* buffer,
                  const gpu::PointerInfo& info, std::size_t bytes, std::size_t fragment_bytes,
                  std::shared_ptr<const transfer::TypedMemory> typed);
    ~PipelinedSend();
    PipelinedSend(const PipelinedSend&) = delete;
    PipelinedSend& operator=(const PipelinedSend&) = delete;

    [[nodiscard]] const std::byte* rts() const noexcept { return _message.data(); }
    [[nodiscard]] std::size_t rts_length() const noexcept { return ipc::rts_length(_id); }
    /// Copies all of the message to memory of the layer's own: the buffer is free when this returns. Throws Error.
    void copy_out();
    /// The RTS is on its way: fragments may follow.
    void posted() noexcept;
    /// The RTS could not be sent.
    void withdraw() noexcept;
    /// True when the buffer may be given back. `asked`: somebody waits for that. Then, after tuning.large_watch without
    /// progress, more and more of what remains is copied out. Throws Error when copying failed.
    [[nodiscard]] bool advance(bool asked);
    /// The same, with errors kept for the next call of that.
    void try_to_advance(bool asked) noexcept;
    /// The call ends. When it is the one that has started the message, as much is given to the MPI as pinned memory can
    /// be spared for, which mostly is all. Errors come out of advance().
    void leave() noexcept;
    /// The MPI must be able to go on alone: to be called until it returns true. While fragments get away, and there is
    /// no pinned memory for the next, that is waited for, rather than ordinary memory taken. Errors come out of
    /// advance().
    [[nodiscard]] bool flush_to_native() noexcept;

  private:
    friend class Network;
    using Clock = std::chrono::steady_clock;
    void step(std::size_t window);
    void start_fragment(protocol::FlowWindow::Credit credit, bool pinned = true);
    void copy_rest_out();
    template <class Copy>
    void give_to_mpi(const Copy& copy) noexcept;
    void finish() noexcept;
    void end() noexcept;
    void fail(Error error) noexcept;
    void lose() noexcept;
    [[nodiscard]] bool all_copied() const noexcept { return _started == _bytes && _copied == _fragments.size(); }
    [[nodiscard]] bool all_sent() const noexcept { return _posted && all_copied() && _sent == _fragments.size(); }
    [[nodiscard]] bool may_be_left(std::chrono::nanoseconds watch);
    /// A message that an MPI would buffer: it is not to wait for its receiver.
    [[nodiscard]] bool is_wrapped() const noexcept { return _info.kind == gpu::MemoryKind::host; }

    Network& _network;
    protocol::FlowWindow& _flow;
    const int _peer;
    const std::uint32_t _id;
    std::byte* const _buffer;
    const gpu::PointerInfo _info;
    const std::shared_ptr<const transfer::TypedMemory> _typed;
    const std::size_t _bytes;
    const std::size_t _fragment_bytes;
    std::array<std::byte, ipc::kLongestRts> _message{};
    std::deque<Fragment> _fragments;  ///< first sent ones, then copied ones, then those being copied
    std::size_t _started = 0;         ///< bytes whose copy was started
    std::size_t _copied = 0;          ///< fragments of _fragments that are in host memory
    std::size_t _sent = 0;            ///< and that the MPI was given
    bool _posted = false;
    bool _left = false;  ///< the call that has started it is over
    bool _free = false;
    bool _ended = false;
    std::optional<Error> _error;
    Clock::time_point _progress{};
};

/// A message on its way from another node. Used by one thread at a time, in calls of the program's.
class PipelinedRecv {
  public:
    /// Stands in the flow window already. `fetching`: counts those of its sender.
    PipelinedRecv(Network& network, protocol::FlowWindow& flow, int peer, std::uint32_t id, std::size_t size,
                  std::size_t fragment_bytes, void* buffer, const gpu::PointerInfo& info, std::size_t capacity,
                  std::shared_ptr<const transfer::TypedMemory> typed, std::atomic<std::size_t>& fetching);
    ~PipelinedRecv();
    PipelinedRecv(const PipelinedRecv&) = delete;
    PipelinedRecv& operator=(const PipelinedRecv&) = delete;

    /// True when it is over, well or not.
    [[nodiscard]] bool advance() noexcept;
    /// Bytes of the message, which may be more than fit.
    [[nodiscard]] std::size_t size() const noexcept { return _size; }
    /// Why it failed; look only when it is over.
    [[nodiscard]] const std::optional<Error>& error() const noexcept { return _error; }

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
    std::byte* const _buffer;
    const gpu::PointerInfo _info;
    const std::shared_ptr<const transfer::TypedMemory> _typed;
    const std::size_t _wanted;
    std::atomic<std::size_t>& _from_peer;  ///< fetches from there that are not over
    std::deque<Fragment> _receiving, _copying;
    std::size_t _asked_for = 0;
    bool _over = false;
    bool _refused = false;  ///< the sender has given up, or the MPI
    std::optional<Error> _error;
};

class Network {
  public:
    /// `others_wait`: whether another thread waits in the MPI, so that a message must not depend on later calls.
    Network(const Native& native, transfer::PinnedPool& pool, std::function<bool()> others_wait);
    ~Network();
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    /// After the MPI's initialisation, in each rank of a job of several nodes, with a GPU or without.
    void start();
    /// The GPU runtime was found.
    void use(gpu::Runtime& runtime, const transfer::Tuning& tuning, transfer::Packer& packer,
             bool mpi_takes_device_memory);
    /// Whether every rank of the job runs the layer: the same answer on all that ask. Waits for the others, which takes
    /// long, once, only where some do not.
    [[nodiscard]] bool everybody_has_the_layer();
    /// Null as long as there is no GPU runtime.
    [[nodiscard]] transfer::DeviceCopies* copies() const noexcept {
        return _has_gpu.load(std::memory_order_acquire) ? _copies.get() : nullptr;
    }
    /// There are messages that only calls of this process give to the MPI.
    [[nodiscard]] bool has_pending_fragments() const noexcept { return _unfinished.load() != 0; }
    /// There are such messages, or some that only calls of this process take from the MPI; perhaps, since a sender has
    /// asked where this process is, some that nobody has looked at yet.
    [[nodiscard]] bool moves_fragments() noexcept {
        if (_turns.load(std::memory_order_relaxed) > 0) {
            _turns.fetch_sub(1, std::memory_order_relaxed);
            return true;
        }
        return has_pending_fragments() || _fetching.load() != 0;
    }
    /// Every receive of this process is prepared for an RTS.
    void open() noexcept { _open.store(true, std::memory_order_release); }
    /// Before the MPI's finalisation: ends what goes on by itself, and takes part in ending it everywhere.
    void stop();
    /// After it.
    void shut_down() noexcept;

    /// Called often; looks now and then whether another process has asked for something: as often as not to be taken
    /// for one that waits in the MPI (protocol/reachability.h), and seldom enough not to be felt.
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
    /// Takes in what others have told, and completes what was left to the MPI. False if another thread is doing that.
    bool poll() noexcept;

    /// The MPI takes device memory itself, as it or the user says: messages are left to it.
    [[nodiscard]] bool passes_through() const noexcept { return _passes_through.load(std::memory_order_acquire); }

    /// Sends `bytes` bytes of device memory to the process with that rank in MPI_COMM_WORLD, in fragments. Null when
    /// they are to be sent plain: too few, the receiver is not ready, or too much is under way. `typed`: the bytes of a
    /// datatype with gaps; `buffer` is then the lowest one.
    [[nodiscard]] std::shared_ptr<PipelinedSend> start_send(
        int peer, const void* buffer, const gpu::PointerInfo& info, std::size_t bytes,
        std::shared_ptr<const transfer::TypedMemory> typed = nullptr);
    /// Whether messages can be fetched to such memory, which `info` describes.
    [[nodiscard]] bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) const {
        return _copies->can_move(device_for(info), memory);
    }
    /// A message of an RTS's length is about to be sent plain. False when it should not be, since an RTS of that
    /// length is under way or too few lengths are left for RTS messages: wrap() it.
    [[nodiscard]] bool may_go_plain(int peer, std::size_t length);
    /// An RTS for a small message in host memory, which is copied at once.
    [[nodiscard]] std::shared_ptr<PipelinedSend> wrap(int peer, const void* packed, std::size_t bytes);

    /// False for what is no RTS. Looks at a few bytes.
    [[nodiscard]] bool begins_like_rts(const std::byte* message) const noexcept;
    /// Whether a received message is an RTS to this process, or a forgery of one: it is as short, and begins with the
    /// secret, which nothing else does.
    [[nodiscard]] bool is_rts(const std::byte* message, std::size_t length) const noexcept;
    /// Fetches what the RTS stands for: as much as fits into `capacity` bytes at `buffer`, which `info` describes
    /// (kind host for ordinary memory). Null when it stands for nothing: it was
    /// forged, or received before.
    [[nodiscard]] std::shared_ptr<PipelinedRecv> start_recv(
        const std::byte* message, std::size_t length, void* buffer, const gpu::PointerInfo& info, std::size_t capacity,
        std::shared_ptr<const transfer::TypedMemory> typed = nullptr);
    /// True size of the message from `peer` that a probe found with this length, from what that one has told; poll()
    /// lets it hear more.
    [[nodiscard]] ipc::TrueSize size_of(int peer, std::size_t length) const;

  private:
    friend class PipelinedSend;
    friend class PipelinedRecv;
    using Secret = std::array<std::uint64_t, 2>;
    using Bits = std::array<std::uint64_t, ipc::kSlots / 64>;  ///< one for each length
    static_assert(ipc::kSlots % 64 == 0);

    /// What processes tell each other, on a tag of its own.
    struct Notice {
        enum Kind : std::uint32_t {
            query,      ///< I want to send RTS messages; these lengths (words) I have sent messages of
            ready,      ///< you may; show this secret (words)
            announce,   ///< the next message of length `id` is an RTS, for so many bytes
            plain,      ///< messages of length `id` never are
            come,       ///< I am receiving the message `id`
            taken,      ///< I have it
            listening,  ///< I have a receive for another ping; bytes: so many of your messages I am receiving
            deaf        ///< I have none, and get none
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
    /// Takes the message's place.
    struct Rts {
        std::uint64_t magic;
        Secret secret;  ///< of its receiver
        std::uint32_t sender;
        std::uint32_t id;
        std::uint64_t bytes;
        std::uint64_t fragment_bytes;
        std::uint64_t generation;
    };
    static_assert(sizeof(Rts) <= ipc::kShortestRts);

    static constexpr std::size_t kPings = protocol::Reachability::kPings;

    /// One side of the traffic with another process.
    struct Sending {
        protocol::FlowWindow flow;
        bool asked = false, ready = false;
        Secret secret{};
        Bits plain{};      ///< lengths of messages that were sent as they were
        Bits under_way{};  ///< lengths of RTS messages that were not yet taken
        std::uint64_t generation = 0;
        std::uint32_t next = 0;
        protocol::Reachability receiver;
        MPI_Request ping = MPI_REQUEST_NULL;
    };
    struct Receiving {
        struct Announced {
            std::uint64_t generation = 0;  ///< of the newest one
            std::uint64_t taken = 0;       ///< of the newest one whose RTS was received
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

    // With the lock held.
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
    [[nodiscard]] std::shared_ptr<PipelinedSend> make(int peer, const void* buffer, const gpu::PointerInfo& info,
                                                      std::size_t bytes, std::size_t fragment_bytes,
                                                      std::shared_ptr<const transfer::TypedMemory> typed = nullptr);

    [[nodiscard]] bool wait_for(MPI_Request& request, std::chrono::nanoseconds limit);
    void send_fragment(int peer, std::uint32_t id, Fragment& fragment);
    void receive_fragment(int peer, std::uint32_t id, Fragment& fragment);
    [[nodiscard]] bool is_complete(Fragment& fragment, MPI_Status& status) const;
    /// Whether that process, which has taken no fragment since then, waits in the MPI (protocol/reachability.h).
    [[nodiscard]] bool waits_in_mpi(int peer, protocol::FlowWindow::Clock::time_point since,
                                    std::chrono::nanoseconds time);
    /// Chunks that the MPI has and nobody waits for.
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
    std::atomic<std::size_t> _unfinished{0};  ///< rendezvous sends of which the MPI has not all
    std::atomic<std::size_t> _fetching{0};    ///< fetches that are not over
    std::atomic<int> _turns{0};               ///< of looks at all receives, for the sake of one that has asked
    bool _alone = false;                      ///< not every rank runs the layer
    bool _nameless = false;                   ///< has no secret
    gpu::Runtime* _runtime = nullptr;
    transfer::Tuning _tuning;
    std::unique_ptr<transfer::DeviceCopies> _copies;

    mutable std::mutex _mutex;  ///< of everything below
    std::unordered_map<int, Sending> _sending;
    std::unordered_map<int, Receiving> _receiving;  ///< of those that have asked
    std::vector<int> _unanswered;
    std::list<Outgoing> _outgoing;                          ///< the MPI reads them where they are
    std::vector<int> _heard;                                ///< whose pings there are receives for
    std::vector<MPI_Request> _listening;                    ///< the oldest of these of each
    std::vector<int> _answered;                             ///< indices of those that were answered
    std::vector<std::vector<MPI_Request>> _listening_next;  ///< the others, of which the MPI completes none before it
    unsigned _questions = 0;                                ///< to the MPI, without a look for pings
    std::size_t _pings = 0;                                 ///< of this process's own, under way
    std::deque<Fragment> _left;
    std::size_t _left_bytes = 0;
};

}  // namespace awaken::AWAKEN_ABI
