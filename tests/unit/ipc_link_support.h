// SPDX-License-Identifier: Apache-2.0
// Two processes of a node that send each other messages, each with a GPU of the emulated driver: what the tests of the
// links between them share.
//
// Each test runs a scenario in a process of its own, which becomes two before a GPU runtime is loaded. The two are
// joined by a socket, over which RTS messages go as they would through the MPI.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "emulator_support.h"
#include "ipc/link.h"
#include "node/segment.h"

namespace awaken::ipc::link_test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using report::Path;

using Bytes = std::vector<std::byte>;

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;
/// Far more than anything here takes, also on a busy machine: who waits longer has been forgotten.
constexpr auto kLimit = 60s;
/// Longer than any test.
constexpr std::chrono::nanoseconds kForEver = 1h;

inline void require(const bool holds, const std::string& what) {
    if (!holds) {
        throw Error(what, "this is what the test is about");
    }
}

inline void require(const gpu::Status& status, const std::string& what) {
    require(status.ok(), what + ": " + status.message());
}

template <typename Condition>
inline void wait_until(const Condition& condition, const std::string& what, const Clock::duration limit = kLimit) {
    const auto end = Clock::now() + limit;
    while (!condition()) {
        require(Clock::now() < end, "waited too long: " + what);
        sched_yield();
    }
}

/// Different for each eight bytes, and for each message. By words, and without a container's operators: unit tests are
/// not optimised, and this is most of what they do.
inline Bytes content_of(const std::size_t bytes, const unsigned seed) {
    Bytes content(bytes);
    std::byte* const begin = content.data();
    std::uint64_t word = seed * 0x9e3779b97f4a7c15u;
    for (std::size_t position = 0; position < bytes; position += sizeof word) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(begin + position, &word, std::min(sizeof word, bytes - position));
    }
    return content;
}

inline bool same(const Bytes& one, const Bytes& other) {
    return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

// ---- two processes --------------------------------------------------------------------------------------------------

/// What stands for the MPI between the two.
class Wire {
  public:
    explicit Wire(const int file) : _file(file) {}
    ~Wire() { close(_file); }
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    void send(const void* const message, const std::size_t bytes) {
        require(::send(_file, message, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes),
                "the other process has ended");
    }
    [[nodiscard]] Bytes receive() {
        require(arrives(kLimit), "waited too long for the other process");
        Bytes message(4096);
        const ssize_t bytes = recv(_file, message.data(), message.size(), 0);
        require(bytes > 0, "the other process has ended");
        message.resize(static_cast<std::size_t>(bytes));
        return message;
    }
    [[nodiscard]] bool arrives(const std::chrono::milliseconds limit) {
        pollfd poll_file{_file, POLLIN, 0};
        return poll(&poll_file, 1, static_cast<int>(limit.count())) == 1;
    }
    /// A message that says no more than that things are so far.
    void tell() { send("!", 1); }
    void hear() { require(receive().size() == 1, "something else was said"); }

  private:
    const int _file;
};

/// Both wait for each other.
inline void meet(Wire& wire) {
    wire.tell();
    wire.hear();
}

/// Figures that make everything quick. `patience`: how long receivers are waited for.
inline transfer::Tuning small_figures(const std::chrono::nanoseconds patience) {
    transfer::Tuning tuning;
    tuning.small_bytes = 4 * KiB;
    tuning.small_watch = tuning.small_wait = tuning.large_watch = patience;
    tuning.bounce_chunk_bytes = 256 * KiB;
    tuning.ring_chunk_bytes = 64 * KiB;
    tuning.ring_chunks = 4;
    tuning.rings = 2;
    return tuning;
}

inline Options options_of(const Link::Allowed path, const std::chrono::nanoseconds patience) {
    Options options;
    options.path = path;
    options.cpu_copy = false;  // whatever this machine has
    options.tuning = small_figures(patience);
    return options;
}

/// One of the processes, with its GPU.
class Node {
  public:
    Node(const std::string& vendor, const std::string& segment_folder, const int rank, Wire* const wire_to_peer,
         const Options& options)
        : folder(segment_folder),
          _library(vendor == "cuda" ? "libcuda.so.1" : "libamdhip64.so.6"),
          _compiler(vendor == "cuda" ? "libnvrtc.so.13" : "libhiprtc.so.6"),
          gpu(gpu::find(vendor == "cuda" ? gpu::Choice::cuda : gpu::Choice::hip)),
          device(rank),
          wire(wire_to_peer) {
        const int ranks = wire != nullptr ? 2 : 1;
        std::string why_not;
        segment = node::Segment::join(
            {.key = "link test", .world_rank = rank, .local_ranks = ranks, .why_unknown = "", .launcher = "test"},
            Areas::bytes(ranks), why_not, folder);
        require(segment != nullptr, why_not);
        if (wire != nullptr) {
            meet(*wire);  // a link is made when all have come
        }
        peer = wire != nullptr ? 1 - segment->own_index() : segment->own_index();
        copies = std::make_unique<transfer::DeviceCopies>(gpu, pool, options.tuning, transfer::CopyEngine::automatic);
        link = std::make_unique<Link>(*segment, gpu, *copies, options, [this](const std::string& reason) {
            const std::scoped_lock lock(_mutex);
            _notes += reason + "\n";
        });
        link->reachability().take_rts(true);
        if (wire != nullptr) {
            meet(*wire);
        }
    }
    ~Node() {
        end();
        pool.trim();
    }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    /// Ends the link, which waits for nobody: who does hangs.
    void end() { link->shut_down(); }
    [[nodiscard]] std::string notes() const {
        const std::scoped_lock lock(_mutex);
        return _notes;
    }
    [[nodiscard]] bool noted(const std::string& part) const { return notes().find(part) != std::string::npos; }
    void send_header(RendezvousSend& send) {
        wire->send(send.rts(), send.rts_length());
        send.wait_until_ready();
    }

    const std::string folder;

  private:
    emulator_test::Library _library;
    emulator_test::Library _compiler;
    mutable std::mutex _mutex;
    std::string _notes;

  public:
    gpu::Runtime& gpu;
    const int device;
    Wire* const wire;
    int peer = -1;
    transfer::PinnedPool pool{16 * MiB};
    std::unique_ptr<node::Segment> segment;
    std::unique_ptr<transfer::DeviceCopies> copies;
    std::unique_ptr<Link> link;
};

enum class Kind : std::uint8_t { host, pinned, device, managed, pool };

/// Memory of one kind.
class Memory {
  public:
    Memory(Node& node, const Kind kind, const std::size_t bytes) : _gpu(node.gpu), _kind(kind), _bytes(bytes) {
        void* pointer = nullptr;
        switch (kind) {
            case Kind::host:
                _host.resize(bytes);
                pointer = _host.data();
                break;
            case Kind::pinned:
                require(_gpu.allocate_pinned(bytes, pointer), "pinned memory");
                break;
            case Kind::device:
                require(_gpu.allocate(node.device, bytes, pointer), "device memory");
                break;
            case Kind::managed:
                require(_gpu.allocate_managed(node.device, bytes, pointer), "managed memory");
                break;
            case Kind::pool:
                require(_gpu.allocate_from_pool(node.device, bytes, pointer), "memory of a pool");
                break;
        }
        data = static_cast<std::byte*>(pointer);
        const void* const asked = data;
        _gpu.classify({&asked, 1}, &info);
        require(_gpu.create_stream(node.device, true, _stream), "a stream");
    }
    ~Memory() {
        static_cast<void>(_gpu.destroy_stream(_stream));
        if (_kind == Kind::pinned) {
            static_cast<void>(_gpu.free_pinned(data));
        }
        if (_kind != Kind::pinned && _kind != Kind::host) {
            static_cast<void>(_gpu.free(data));
        }
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    void write(const Bytes& content) { copy(data, content.data(), content.size()); }
    void fill(const unsigned char value) { write(Bytes(_bytes, std::byte{value})); }
    [[nodiscard]] Bytes read() {
        Bytes content(_bytes);
        copy(content.data(), data, _bytes);
        return content;
    }

  private:
    void copy(void* to, const void* from, const std::size_t bytes) {
        if (_kind == Kind::host) {
            std::memcpy(to, from, bytes);
            return;
        }
        require(_gpu.copy(to, from, bytes, _stream), "a copy");
        require(_gpu.synchronize_stream(_stream), "a copy's end");
    }
    gpu::Runtime& _gpu;
    const Kind _kind;
    const std::size_t _bytes;
    gpu::StreamHandle _stream;
    Bytes _host;

  public:
    std::byte* data = nullptr;
    gpu::PointerInfo info;
};

/// Descriptors of files in the folder that this process has open.
inline std::vector<int> descriptors_in(const std::string& folder) {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), error);
        if (!error && target.string().rfind(folder, 0) == 0) {
            found.push_back(std::stoi(entry.path().filename()));
        }
    }
    return found;
}

/// Runs one process's part; 0 when it was as it should be and left nothing behind.
template <typename Body>
inline int run_part(const char* const name, const std::string& folder, const Body& body) {
    try {
        body();
        require(descriptors_in(folder).empty(), "the segment's file is still open");
        return 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", name, error.what());
        return 1;
    }
}

class Folder {
  public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "awaken-link-XXXXXX").string();
        require(mkdtemp(name.data()) != nullptr, "no temporary folder");
        path = name;
    }
    ~Folder() {
        std::error_code error;
        std::filesystem::remove_all(path, error);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    [[nodiscard]] bool is_empty() const { return std::filesystem::is_empty(path); }
    std::string path;
};

/// How the scenarios differ in what the two processes are given.
struct Parts {
    Options options;
    std::string sender_faults = {};
    std::string receiver_faults = {};
    bool receiver_dies = false;  ///< else the sender may
    bool any_dies = false;
};

using Body = std::function<void(Node&)>;

/// The two processes: a sender of rank 0 and a receiver of rank 1. Returns the scenario's exit status.
inline int between_two(const std::string& vendor, const Parts& parts, const Body& sender, const Body& receiver) {
    const Folder folder;
    std::array<int, 2> files{};
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, files.data()) == 0, "no socket");
    const auto part = [&](const bool is_sender, const int file) {
        const std::string& faults = is_sender ? parts.sender_faults : parts.receiver_faults;
        if (!faults.empty()) {
            setenv("AWAKEN_TEST_FAULTS", faults.c_str(), 1);
        }
        return run_part(is_sender ? "sender" : "receiver", folder.path, [&] {
            Wire wire(file);
            Node node(vendor, folder.path, is_sender ? 0 : 1, &wire, parts.options);
            is_sender ? sender(node) : receiver(node);
        });
    };
    // Whoever dies is the child, and is gone for good at once, as with a launcher that looks after its processes.
    if (parts.any_dies) {
        signal(SIGCHLD, SIG_IGN);
    }
    const bool child_is_sender = !parts.receiver_dies;
    const pid_t parent = getpid();
    const pid_t child = fork();
    require(child >= 0, "no second process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        alarm(60);
        close(files[1]);
        const int status = part(child_is_sender, files[0]);
        std::fflush(nullptr);
        _exit(status);
    }
    close(files[0]);
    int status = part(!child_is_sender, files[1]);
    if (!parts.any_dies) {
        int child_status = 0;
        waitpid(child, &child_status, 0);
        status += WIFEXITED(child_status) ? WEXITSTATUS(child_status) : 128 + WTERMSIG(child_status);
    }
    if (!folder.is_empty()) {
        std::fprintf(stderr, "something was left in the segment's folder\n");
        ++status;
    }
    return status;
}

// ---- messages -------------------------------------------------------------------------------------------------------

struct Message {
    std::size_t bytes = 0;
    std::optional<Path> path = Path::direct;  ///< nothing: may be either of several
    Kind from = Kind::device, to = Kind::device;
    std::size_t offset = 0;  ///< in both buffers
    std::size_t capacity = SIZE_MAX;
    bool late = false;  ///< the receiver comes when the sender has its buffer back
};

inline std::string name_of(const Message& message) {
    return "message of " + std::to_string(message.bytes) + " bytes from kind " +
           std::to_string(static_cast<int>(message.from)) + " to kind " + std::to_string(static_cast<int>(message.to)) +
           " at " + std::to_string(message.offset) + (message.late ? ", late" : "");
}

inline void require_path(const Path actual, const std::optional<Path> expected, const std::string& what) {
    if (!expected) {
        return;
    }
    require(actual == *expected, what + " went by route " + std::to_string(static_cast<int>(actual)) + " instead of " +
                                     std::to_string(static_cast<int>(*expected)));
}

/// Offers bytes by the path that is chosen for them. Null when they are to be sent plain.
inline std::shared_ptr<RendezvousSend> offer(Link& link, const int peer, std::byte* const first,
                                             const gpu::PointerInfo& info, const std::size_t bytes,
                                             const protocol::SendFacts::Mode mode = {
                                                 protocol::SendFacts::Mode::offered}) {
    protocol::SendFacts facts;
    facts.mode = mode;
    facts.bytes = bytes;
    facts.memory = info.kind;
    facts.served = !info.host_accessible();
    using Export = protocol::SendFacts::Export;
    facts.exported_by = info.ipc_capable ? Export::ipc : Export::no;
    link.describe(peer, info, facts);
    facts.wants_from_host = true;
    const protocol::SendPaths paths = protocol::choose_send_paths(facts, link.tuning());
    return std::static_pointer_cast<RendezvousSend>(link.start_send(peer, {first, info, bytes, nullptr}, paths));
}

/// The same for a small message in host memory, which is copied at once.
inline std::shared_ptr<RendezvousSend> wrap(Node& node, const void* const content, const std::size_t bytes) {
    return std::static_pointer_cast<RendezvousSend>(node.link->wrap(node.peer, content, bytes));
}

inline std::shared_ptr<RendezvousSend> start_send(Node& node, const Memory& memory, const std::size_t bytes,
                                                  const std::size_t offset = 0) {
    auto send = offer(*node.link, node.peer, memory.data + offset, memory.info, bytes);
    require(send != nullptr, "nothing was shipped: " + node.notes());
    return send;
}

inline void wait_until_free(RendezvousSend& send, const std::string& what,
                            const transport::Patience patience = transport::Patience::short_) {
    wait_until([&] { return send.advance(patience); }, what);
}

inline void send_message(Node& node, const Message& message, const unsigned number) {
    const std::string name = name_of(message);
    Memory source(node, message.from, message.offset + message.bytes);
    Bytes content(message.offset);
    const Bytes payload = content_of(message.bytes, number);
    content.insert(content.end(), payload.begin(), payload.end());
    source.write(content);
    // While the receiver is still emptying all rings there is none for the next message.
    std::shared_ptr<RendezvousSend> send;
    wait_until(
        [&] {
            send = offer(*node.link, node.peer, source.data + message.offset, source.info, message.bytes);
            return send != nullptr;
        },
        "nothing was shipped: " + name);
    node.send_header(*send);
    wait_until_free(*send, name);
    source.fill(0xDD);  // it is the program's again
    if (message.late) {
        node.wire->tell();
    }
    require_path(send->path(), message.path, "the shipment of a " + name);
    node.link->sends().retire(send);
}

/// Fetches the message that this RTS stands for. Null when there is none.
inline std::shared_ptr<RendezvousGet> get(Node& node, const Bytes& rts, Memory& destination, const std::size_t capacity,
                                          const std::size_t offset = 0) {
    return std::static_pointer_cast<RendezvousGet>(node.link->start_receive(
        rts.data(), rts.size(), {destination.data + offset, destination.info, capacity, nullptr}));
}

inline void finish(const std::shared_ptr<RendezvousGet>& get, const std::string& what) {
    require(get != nullptr, what + ": no such message");
    wait_until([&] { return get->advance(); }, what);
    require(!get->error(), what + ": " + (get->error() ? get->error()->what() : ""));
}

inline void receive_message(Node& node, const Message& message, const unsigned number) {
    constexpr std::size_t kBeyond = 64;
    const std::string name = name_of(message);
    Memory destination(node, message.to, message.offset + message.bytes + kBeyond);
    destination.fill(0xEE);
    const Bytes rts = node.wire->receive();
    if (message.late) {
        node.wire->hear();
    }
    require(node.link->is_rts(rts.data(), rts.size()), name + ": its header is none");
    require(node.link->size_of(node.peer, rts.size()).bytes == message.bytes, name + ": a probe sees another size");
    const auto fetched = get(node, rts, destination, message.capacity, message.offset);
    finish(fetched, name);
    require(fetched->size() == message.bytes, name + ": its size is another one");
    const std::size_t wanted = std::min(message.bytes, message.capacity);
    Bytes expected(message.offset + message.bytes + kBeyond, std::byte{0xEE});
    const Bytes payload = content_of(message.bytes, number);
    std::copy_n(payload.begin(), wanted, expected.begin() + static_cast<std::ptrdiff_t>(message.offset));
    const Bytes arrived = destination.read();
    if (!same(arrived, expected)) {
        const auto at = std::mismatch(expected.begin(), expected.end(), arrived.begin()).first - expected.begin();
        require(false, name + ": wrong from byte " + std::to_string(at) + " on");
    }
    if (wanted != 0) {
        require_path(fetched->path(), message.path, "the fetch of a " + name);
    }
}

/// Runs scenarios as CUDA and as HIP.
class LinkTest : public ::testing::TestWithParam<const char*> {
  protected:
    static void run(const std::string& scenario, const std::string& more = {}, const char* const delay_us = "200") {
        const std::string vendor = GetParam();
        const auto outcome = emulator_test::run_scenario(
            scenario, {{"AWAKEN_EMULATE", vendor + ":2"}, {"AWAKEN_TEST_DELAY_US", delay_us}}, {vendor, more});
        EXPECT_TRUE(outcome.succeeded()) << more << ": " << outcome.output;
    }
};

}  // namespace awaken::ipc::link_test
