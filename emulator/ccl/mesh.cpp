// SPDX-License-Identifier: Apache-2.0
#include "ccl/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace awaken::emulator::ccl {
namespace {

constexpr std::uint32_t kMagic = 0x4b574343;
/// Most sockets that one message may carry (SCM_MAX_FD of Linux).
constexpr int kMostPeers = 253;

/// The contents of a unique identifier.
struct Identifier {
    std::uint32_t magic;
    std::uint32_t process;
    unsigned char key[16];
};
static_assert(sizeof(Identifier) <= sizeof(UniqueId));

/// Messages between a rank and the listener, each sent and received as one.
struct Hello {
    std::uint32_t magic = kMagic;
    Introduction introduction;
};
struct Verdict {
    Result result = Result::success;
    std::array<char, 256> text = {};
};
/// Before the bytes of each part.
struct Header {
    std::uint32_t magic;
    std::uint32_t kind;
    std::uint64_t bytes;
};

/// Throws unless a system call gave what it should.
void require(bool holds, std::string_view otherwise) {
    if (const int error = errno; !holds) {
        throw Failure{Result::system_error, std::string(otherwise) + ": " + std::generic_category().message(error)};
    }
}

/// Abstract addresses start with a zero byte and are no files.
socklen_t address_of(const Identifier& identifier, sockaddr_un& address) {
    address = {};
    address.sun_family = AF_UNIX;
    std::string name = "awaken-emulated-ccl-" + std::to_string(identifier.process) + "-";
    for (const unsigned char byte : identifier.key) {
        constexpr const char* kDigits = "0123456789abcdef";
        name += kDigits[byte >> 4];
        name += kDigits[byte & 15];
    }
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

/// A mesh of many ranks needs more descriptors than the usual soft limit.
void raise_descriptor_limit() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/// Retries a system call that a signal interrupts.
template <typename Call>
auto uninterrupted(const Call& call) noexcept {
    auto result = call();
    while (result < 0 && errno == EINTR) {
        result = call();
    }
    return result;
}

/// Room for the ancillary data that carries sockets.
struct Ancillary {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostPeers)> bytes = {};
};

void send_verdict(const Socket& to, const Failure& failure, std::span<const int> sockets) noexcept {
    Verdict verdict;
    verdict.result = failure.result;
    failure.text.copy(verdict.text.data(), verdict.text.size() - 1);
    iovec part{&verdict, sizeof verdict};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    Ancillary ancillary;
    if (!sockets.empty()) {
        message.msg_control = ancillary.bytes.data();
        message.msg_controllen = CMSG_SPACE(sockets.size_bytes());
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sockets.size_bytes());
        std::memcpy(CMSG_DATA(header), sockets.data(), sockets.size_bytes());
    }
    // A rank that has died meanwhile is noticed by the others, at the sockets that would have led to it.
    static_cast<void>(uninterrupted([&] { return ::sendmsg(to.number(), &message, MSG_NOSIGNAL); }));
}

/// Waits for the verdict and takes the sockets that come with it.
std::vector<Socket> receive_verdict(const Socket& from) {
    Verdict verdict;
    iovec part{&verdict, sizeof verdict};
    Ancillary ancillary;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.bytes.data();
    message.msg_controllen = ancillary.bytes.size();
    const ssize_t length = uninterrupted([&] { return ::recvmsg(from.number(), &message, MSG_CMSG_CLOEXEC); });
    std::vector<Socket> sockets;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
        sockets = std::vector<Socket>(numbers.begin(), numbers.end());
    }
    // The listener says nothing more. Its end of this connection is the last thing that it closes, so what it held for
    // the communicator is gone when a rank returns.
    char nothing = 0;
    static_cast<void>(uninterrupted([&] { return ::recv(from.number(), &nothing, sizeof nothing, 0); }));
    if (length != static_cast<ssize_t>(sizeof verdict)) {
        throw Failure{Result::remote_error, "the process that made the unique identifier has gone"};
    }
    if (verdict.result != Result::success) {
        throw Failure{verdict.result, verdict.text.data()};
    }
    return sockets;
}

/// A rank that has said who it is.
struct Guest {
    Socket socket;
    Introduction introduction;
};

/// Throws when what has come so far cannot become a communicator.
void judge(const std::vector<Guest>& guests) {
    const Introduction& newest = guests.back().introduction;
    const std::string rank = std::to_string(newest.rank);
    if (newest.gives_up) {
        throw Failure{Result::remote_error, "rank " + rank + " failed to initialise"};
    }
    if (newest.ranks != guests.front().introduction.ranks) {
        throw Failure{Result::invalid_argument, "ranks disagree about their number"};
    }
    for (const Guest& guest : guests) {
        const Introduction& other = guest.introduction;
        if (&other == &newest) {
            continue;
        }
        if (other.rank == newest.rank) {
            throw Failure{Result::invalid_argument, "rank " + rank + " has come twice"};
        }
        if (other.device == newest.device && !(other.may_share && newest.may_share)) {
            std::array<char, 128> text = {};
            std::snprintf(text.data(), text.size(),
                          "Duplicate GPU detected : rank %d and rank %d both on CUDA device %llx",
                          std::max(other.rank, newest.rank), std::min(other.rank, newest.rank),
                          static_cast<unsigned long long>(newest.device));
            throw Failure{Result::invalid_usage, text.data()};
        }
    }
}

/// Gives each guest a socket to every other one.
void connect_all(std::vector<Guest>& guests) {
    const std::size_t ranks = guests.size();
    std::sort(guests.begin(), guests.end(),
              [](const Guest& a, const Guest& b) { return a.introduction.rank < b.introduction.rank; });
    raise_descriptor_limit();
    std::vector<std::vector<Socket>> ends(ranks);
    for (std::size_t low = 0; low < ranks; ++low) {
        for (std::size_t high = low + 1; high < ranks; ++high) {
            int pair[2];
            require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0,
                    "cannot connect " + std::to_string(ranks) +
                        " ranks with each other (raise the limit on open files, ulimit -n)");
            ends[low].emplace_back(pair[0]);
            ends[high].emplace_back(pair[1]);
        }
    }
    // Both loops above go upwards, so the ends of a rank are in the order of its peers: first those of lower ranks.
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        std::vector<int> numbers;
        for (const Socket& end : ends[rank]) {
            numbers.push_back(end.number());
        }
        send_verdict(guests[rank].socket, {}, numbers);
    }
}

/// Waits until all ranks have come, or one has gone again.
void gather(const Socket listener, std::vector<Guest>& guests) {
    std::vector<Socket> strangers;  // connected, but have said nothing yet
    while (guests.empty() || guests.size() < static_cast<std::size_t>(guests.front().introduction.ranks)) {
        std::vector<pollfd> watched{{listener.number(), POLLIN, 0}};
        for (const Socket& stranger : strangers) {
            watched.push_back({stranger.number(), POLLIN, 0});
        }
        for (const Guest& guest : guests) {
            watched.push_back({guest.socket.number(), POLLIN, 0});
        }
        require(uninterrupted([&] { return ::poll(watched.data(), watched.size(), -1); }) >= 0,
                "cannot wait for ranks");
        // Guests have nothing more to say: what comes from them is their end.
        for (std::size_t at = 0; at < guests.size(); ++at) {
            if (watched[1 + strangers.size() + at].revents != 0) {
                throw Failure{Result::remote_error, "rank " + std::to_string(guests[at].introduction.rank) +
                                                        " has gone while others were awaited"};
            }
        }
        for (std::size_t at = strangers.size(); at-- > 0;) {
            if (watched[1 + at].revents == 0) {
                continue;
            }
            Hello hello;
            const ssize_t length =
                uninterrupted([&] { return ::recv(strangers[at].number(), &hello, sizeof hello, 0); });
            Socket socket = std::move(strangers[at]);
            strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(at));
            if (length != static_cast<ssize_t>(sizeof hello) || hello.magic != kMagic) {
                continue;
            }
            guests.push_back({std::move(socket), hello.introduction});
            judge(guests);
        }
        if (watched[0].revents != 0) {
            Socket stranger(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
            if (stranger.open()) {
                strangers.push_back(std::move(stranger));
            }
        }
    }
}

/// The listener's thread: one communicator, and it ends.
void listen_for_ranks(Socket listener) {
    std::vector<Guest> guests;
    try {
        // Takes the listener, and closes it before anybody learns how it ended: who comes later finds nobody.
        gather(std::move(listener), guests);
        connect_all(guests);
    } catch (const Failure& failure) {
        for (const Guest& guest : guests) {
            send_verdict(guest.socket, failure, {});
        }
    }
}

}  // namespace

UniqueId make_identifier() {
    Identifier made{};
    made.magic = kMagic;
    made.process = static_cast<std::uint32_t>(::getpid());
    require(uninterrupted([&] { return ::getrandom(made.key, sizeof made.key, 0); }) ==
                static_cast<ssize_t>(sizeof made.key),
            "cannot draw a unique identifier");
    Socket listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    const socklen_t length = address_of(made, address);
    require(listener.open() && ::bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                ::listen(listener.number(), SOMAXCONN) == 0,
            "cannot listen for ranks");
    // Detached: ranks may come until the process ends, or never.
    std::thread(listen_for_ranks, std::move(listener)).detach();
    UniqueId identifier{};
    std::memcpy(identifier.bytes, &made, sizeof made);
    return identifier;
}

std::unique_ptr<Mesh> Mesh::join(const UniqueId& identifier, const Introduction& introduction) {
    Identifier where{};
    std::memcpy(&where, identifier.bytes, sizeof where);
    if (where.magic != kMagic) {
        throw Failure{Result::invalid_argument, "the unique identifier is none that ncclGetUniqueId has made"};
    }
    if (introduction.ranks - 1 > kMostPeers) {
        throw Failure{Result::invalid_argument,
                      "more than " + std::to_string(kMostPeers + 1) + " ranks are not emulated"};
    }
    const Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    const socklen_t length = address_of(where, address);
    const auto connect = [&] {
        return ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length);
    };
    require(socket.open() && uninterrupted(connect) == 0,
            "nobody listens for this unique identifier: it was used before, another rank failed, or "
            "its process has ended");
    const Hello hello{kMagic, introduction};
    require(uninterrupted([&] { return ::send(socket.number(), &hello, sizeof hello, MSG_NOSIGNAL); }) ==
                static_cast<ssize_t>(sizeof hello),
            "cannot reach the process that made the unique identifier");
    raise_descriptor_limit();
    std::vector<Socket> sockets = receive_verdict(socket);
    if (sockets.size() != static_cast<std::size_t>(introduction.ranks - 1)) {
        throw Failure{Result::system_error, "not all connections arrived (raise the limit on open files, ulimit -n)"};
    }
    sockets.insert(sockets.begin() + introduction.rank, Socket());
    return std::unique_ptr<Mesh>(new Mesh(introduction.ranks, introduction.rank, std::move(sockets)));
}

Mesh::Mesh(int ranks, int rank, std::vector<Socket> sockets)
    : _ranks(ranks), _rank(rank), _sockets(std::move(sockets)) {}

void Mesh::interrupt() noexcept {
    _interrupted.store(true);
    for (const Socket& socket : _sockets) {
        if (socket.open()) {
            ::shutdown(socket.number(), SHUT_RDWR);
        }
    }
}

namespace {

/// A part under way.
struct Transfer {
    Mesh::Part part;
    Header header{};
    std::size_t done = 0;  ///< of header and data together

    [[nodiscard]] bool complete() const noexcept { return done == sizeof header + part.bytes; }
    /// What to move next.
    [[nodiscard]] std::span<std::byte> rest() noexcept {
        if (done < sizeof header) {
            return {reinterpret_cast<std::byte*>(&header) + done, sizeof header - done};
        }
        return {part.data + (done - sizeof header), part.bytes - (done - sizeof header)};
    }
};

/// What is still to be moved to and from one peer.
struct Lane {
    std::deque<Transfer> out;
    std::deque<Transfer> in;
};

/// Moves the parts of a lane's one direction as far as it goes without waiting. `move` is of send and recv the one;
/// `arrived` looks at each header that is complete.
template <typename Move, typename Arrived>
void advance(int peer, std::deque<Transfer>& queue, const Move& move, const Arrived& arrived) {
    while (!queue.empty()) {
        Transfer& transfer = queue.front();
        if (const std::span<std::byte> rest = transfer.rest(); !rest.empty()) {
            const ssize_t moved = move(rest);
            if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
                return;
            }
            if (moved <= 0) {
                throw Failure{Result::remote_error, "the connection to rank " + std::to_string(peer) + " has ended"};
            }
            transfer.done += static_cast<std::size_t>(moved);
        }
        if (transfer.done == sizeof(Header)) {
            arrived(transfer);
        }
        if (transfer.complete()) {
            queue.pop_front();
        }
    }
}

void push(int socket, int peer, std::deque<Transfer>& queue) {
    advance(
        peer, queue,
        [&](std::span<std::byte> rest) {
            return ::send(socket, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        },
        [](const Transfer&) {});
}

void pull(int socket, int peer, std::deque<Transfer>& queue) {
    advance(
        peer, queue, [&](std::span<std::byte> rest) { return ::recv(socket, rest.data(), rest.size(), MSG_DONTWAIT); },
        [&](const Transfer& transfer) {
            const Header& header = transfer.header;
            if (header.magic != kMagic || header.kind != transfer.part.kind || header.bytes != transfer.part.bytes) {
                throw Failure{Result::invalid_usage,
                              "rank " + std::to_string(peer) + " sends " + std::to_string(header.bytes) +
                                  " bytes where " + std::to_string(transfer.part.bytes) +
                                  " are received, or is in another operation: calls must agree on all ranks"};
            }
        });
}

}  // namespace

void Mesh::exchange(std::span<const Part> sends, std::span<const Part> receives) {
    std::vector<Lane> lanes(static_cast<std::size_t>(_ranks));
    for (const Part& part : sends) {
        lanes[static_cast<std::size_t>(part.peer)].out.push_back({part, {kMagic, part.kind, part.bytes}, 0});
    }
    for (const Part& part : receives) {
        lanes[static_cast<std::size_t>(part.peer)].in.push_back({part, {}, 0});
    }

    Lane& own = lanes[static_cast<std::size_t>(_rank)];
    while (!own.out.empty() || !own.in.empty()) {
        if (own.out.empty() || own.in.empty() || own.out.front().part.bytes != own.in.front().part.bytes) {
            throw Failure{Result::invalid_usage, "a rank's sends to itself and receives from itself do not match"};
        }
        const Part& from = own.out.front().part;
        if (from.bytes != 0) {
            std::memmove(own.in.front().part.data, from.data, from.bytes);
        }
        own.out.pop_front();
        own.in.pop_front();
    }

    while (true) {
        std::vector<pollfd> watched;
        for (int peer = 0; peer < _ranks; ++peer) {
            if (peer == _rank) {
                continue;
            }
            Lane& lane = lanes[static_cast<std::size_t>(peer)];
            const int socket = _sockets[static_cast<std::size_t>(peer)].number();
            push(socket, peer, lane.out);
            pull(socket, peer, lane.in);
            const int events = (lane.out.empty() ? 0 : POLLOUT) | (lane.in.empty() ? 0 : POLLIN);
            if (events != 0) {
                watched.push_back({socket, static_cast<short>(events), 0});
            }
        }
        if (watched.empty()) {
            return;
        }
        if (_interrupted.load()) {
            throw Failure{Result::remote_error, "the communicator was aborted"};
        }
        require(uninterrupted([&] { return ::poll(watched.data(), watched.size(), -1); }) >= 0,
                "cannot wait for peers");
    }
}

}  // namespace awaken::emulator::ccl
