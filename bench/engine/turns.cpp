// SPDX-License-Identifier: Apache-2.0
#include "engine/turns.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace awaken::bench {
namespace {

constexpr std::size_t kLongestLine = 256;

struct AddressList {
    addrinfo* first = nullptr;
    AddressList(const std::string& host, const std::string& port, bool passive) {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
        if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &first); code != 0) {
            throw Error("the address " + host + " cannot be used (" + gai_strerror(code) + ")",
                        "give an address of this machine that all nodes reach with --listen");
        }
    }
    ~AddressList() { freeaddrinfo(first); }
    AddressList(const AddressList&) = delete;
    AddressList& operator=(const AddressList&) = delete;
};

/// All of `text`, whatever the socket takes at a time. False when the other side has gone.
bool send_all(const int socket, const std::string& text) noexcept {
    for (std::size_t sent = 0; sent < text.size();) {
        const ssize_t count = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return false;
        }
        sent += static_cast<std::size_t>(count);
    }
    return true;
}

std::string random_token() {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
        throw Error(std::string("no random numbers (") + std::strerror(errno) + ")", "mount /dev and try again");
    }
    std::string text;
    for (const unsigned char byte : bytes) {
        constexpr char kDigits[] = "0123456789abcdef";
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

bool parse_number(const std::string& text, std::size_t& value) {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    return code == std::errc() && end == text.data() + text.size();
}

}  // namespace

// ---- the rank's end -------------------------------------------------------------------------------------------------

TurnClient::TurnClient(const std::string& address, const int rank, const int ranks) {
    if (address.empty()) {
        return;
    }
    // HOST may contain colons (IPv6), the other three parts cannot.
    std::string rest = address;
    std::string parts[3];
    for (std::string& part : parts) {
        const std::size_t colon = rest.rfind(':');
        if (colon == std::string::npos) {
            throw Error("the file of --turns holds no HOST:PORT:TOKEN:GROUP", "leave it to `awaken bench --launcher`");
        }
        part = rest.substr(colon + 1);
        rest.resize(colon);
    }
    const auto& [group, token, port] = parts;
    const AddressList addresses(rest, port, false);
    int reason = 0;
    for (const addrinfo* entry = addresses.first; entry != nullptr && _socket < 0; entry = entry->ai_next) {
        const int candidate = ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol);
        if (candidate >= 0 && connect(candidate, entry->ai_addr, entry->ai_addrlen) == 0) {
            _socket = candidate;
        } else {
            reason = errno;
            if (candidate >= 0) {
                close(candidate);
            }
        }
    }
    if (_socket < 0) {
        throw Error("the process that gives turns cannot be reached at " + rest + ":" + port + " (" +
                        std::strerror(reason) + ")",
                    "give an address of its machine that all nodes reach with --listen");
    }
    const int on = 1;
    setsockopt(_socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    send_line("awaken-bench " + token + " " + group + " " + std::to_string(rank) + " " + std::to_string(ranks));
}

TurnClient::~TurnClient() {
    end();
}

TurnClient::TurnClient(TurnClient&& other) noexcept : _socket(std::exchange(other._socket, -1)) {}

TurnClient& TurnClient::operator=(TurnClient&& other) noexcept {
    if (this != &other) {
        end();
        _socket = std::exchange(other._socket, -1);
    }
    return *this;
}

void TurnClient::send_line(const std::string& line) {
    if (!send_all(_socket, line + "\n")) {
        throw Error(std::string("the process that gives turns has gone (") + std::strerror(errno) + ")", "run again");
    }
}

void TurnClient::wait(const std::size_t step) {
    if (_socket < 0) {
        return;
    }
    send_line("wait " + std::to_string(step));
    std::string line;
    while (line.find('\n') == std::string::npos) {
        char byte = 0;
        const ssize_t count = recv(_socket, &byte, 1, 0);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            throw Error("the process that gives turns has gone", "run again");
        }
        line += byte;
    }
    if (line != "go\n") {
        throw Error("the process that gives turns does not speak our protocol", "run again");
    }
}

void TurnClient::end() noexcept {
    if (_socket < 0) {
        return;
    }
    static_cast<void>(send_all(_socket, "end\n"));
    close(_socket);
    _socket = -1;
}

// ---- the server's end -----------------------------------------------------------------------------------------------

TurnServer::TurnServer(const std::string& host, const std::size_t groups)
    : _host(host), _token(random_token()), _groups(groups) {
    const AddressList addresses(host, "0", true);
    const addrinfo* const entry = addresses.first;
    _listener = ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, entry->ai_protocol);
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    if (_listener < 0 || bind(_listener, entry->ai_addr, entry->ai_addrlen) != 0 || listen(_listener, SOMAXCONN) != 0 ||
        getsockname(_listener, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
        const std::string reason = std::strerror(errno);
        if (_listener >= 0) {
            close(_listener);
        }
        throw Error("cannot listen on " + host + " (" + reason + ")", "give another address with --listen");
    }
    _port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                              : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

TurnServer::~TurnServer() {
    for (auto& [socket, connection] : _connections) {
        close(socket);
    }
    close(_listener);
}

std::string TurnServer::address(const std::size_t group) const {
    return _host + ":" + std::to_string(_port) + ":" + _token + ":" + std::to_string(group);
}

void TurnServer::accept_connection() {
    const int socket = accept4(_listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) {
        return;  // it has gone again
    }
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    _connections[socket].socket = socket;
}

void TurnServer::close_connection(Connection& connection) {
    if (connection.introduced && !connection.ended) {
        _groups[connection.group].broken = true;
    }
    close(connection.socket);
    connection.socket = -1;
}

void TurnServer::handle(Connection& connection, const std::string& line) {
    std::istringstream stream(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    if (!connection.introduced) {
        std::size_t group = 0, rank = 0, ranks = 0;
        const bool valid = words.size() == 5 && words[0] == "awaken-bench" && words[1] == _token &&
                           parse_number(words[2], group) && parse_number(words[3], rank) &&
                           parse_number(words[4], ranks) && group < _groups.size() && rank < ranks;
        if (!valid) {
            return close_connection(connection);  // a stranger
        }
        connection.introduced = true;
        connection.group = group;
        _groups[group].ranks = ranks;
        ++_groups[group].introduced;
        return;
    }
    if (words.size() == 2 && words[0] == "wait" && parse_number(words[1], connection.step)) {
        connection.waiting = true;
    } else if (words.size() == 1 && words[0] == "end" && !connection.ended) {
        connection.ended = true;
        Group& group = _groups[connection.group];
        ++group.left;
        if (group.left == group.ranks) {
            group.ended = true;
        }
    } else {
        close_connection(connection);
    }
}

void TurnServer::receive(Connection& connection) {
    char buffer[4096];
    const ssize_t count = recv(connection.socket, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) {
        return;
    }
    if (count <= 0) {
        return close_connection(connection);
    }
    connection.input.append(buffer, static_cast<std::size_t>(count));
    for (std::size_t end = connection.input.find('\n'); end != std::string::npos && connection.socket >= 0;
         end = connection.input.find('\n')) {
        const std::string line = connection.input.substr(0, end);
        connection.input.erase(0, end + 1);
        handle(connection, line);
    }
    if (connection.socket >= 0 && connection.input.size() > kLongestLine) {
        close_connection(connection);
    }
}

void TurnServer::give_turn() {
    // A turn is given when every group that still takes part stands still: that includes the one that had the last.
    std::vector<std::size_t> waiting(_groups.size(), 0);
    std::vector<std::size_t> steps(_groups.size(), std::numeric_limits<std::size_t>::max());
    for (const auto& [socket, connection] : _connections) {
        if (!connection.introduced || !connection.waiting) {
            continue;
        }
        ++waiting[connection.group];
        steps[connection.group] = std::min(steps[connection.group], connection.step);
    }
    const Group* chosen = nullptr;
    std::size_t chosen_index = 0;
    for (std::size_t index = 0; index < _groups.size(); ++index) {
        const Group& group = _groups[index];
        if (group.ended) {
            continue;
        }
        if (group.ranks == 0 || waiting[index] < group.ranks) {
            return;
        }
        if (chosen == nullptr || steps[index] < steps[chosen_index] ||
            (steps[index] == steps[chosen_index] && group.last_turn < chosen->last_turn)) {
            chosen = &group;
            chosen_index = index;
        }
    }
    if (chosen == nullptr) {
        return;
    }
    _turn = {_turn.number + 1, chosen_index, steps[chosen_index]};
    _groups[chosen_index].last_turn = _turn.number;
    for (auto& [socket, connection] : _connections) {
        if (!connection.introduced || connection.group != chosen_index) {
            continue;
        }
        connection.waiting = false;
        static_cast<void>(send_all(socket, "go\n"));  // one that has gone is noticed by its end of file
    }
}

void TurnServer::serve(const int timeout_ms) {
    std::vector<pollfd> watched = {{_listener, POLLIN, 0}};
    for (const auto& [socket, connection] : _connections) {
        watched.push_back({socket, POLLIN, 0});
    }
    if (poll(watched.data(), watched.size(), timeout_ms) > 0) {
        for (std::size_t index = 1; index < watched.size(); ++index) {
            if (watched[index].revents == 0) {
                continue;
            }
            const auto found = _connections.find(watched[index].fd);
            receive(found->second);
            if (found->second.socket < 0) {
                _connections.erase(found);
            }
        }
        if (watched.front().revents != 0) {
            accept_connection();
        }
    }
    give_turn();
}

void TurnServer::end_group(const std::size_t group) {
    _groups[group].ended = true;
}

bool TurnServer::ended(const std::size_t group) const {
    return _groups[group].ended;
}

bool TurnServer::complete(const std::size_t group) const {
    return _groups[group].ranks != 0 && _groups[group].introduced >= _groups[group].ranks;
}

std::size_t TurnServer::ranks(const std::size_t group) const {
    return _groups[group].ranks;
}

bool TurnServer::broken(const std::size_t group) const {
    return _groups[group].broken && !_groups[group].ended;
}

}  // namespace awaken::bench
