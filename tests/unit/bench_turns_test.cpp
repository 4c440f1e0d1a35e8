// SPDX-License-Identifier: Apache-2.0
// Turns: never two groups at a time, the lowest step first, and nobody waits for those who have gone.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/turns.h"

namespace awaken::bench {
namespace {

/// Serves in a thread until `stop` is called, so that clients may block.
class Serving {
  public:
    explicit Serving(TurnServer& server)
        : _thread([this, &server] {
              while (!_stop) {
                  const std::scoped_lock lock(mutex);
                  server.serve(1);
              }
          }) {}
    ~Serving() {
        _stop = true;
        _thread.join();
    }

    std::mutex mutex;  ///< of the server

  private:
    std::atomic<bool> _stop = false;
    std::thread _thread;
};

TEST(Turns, WithoutAnAddressNobodyWaits) {
    TurnClient client;
    client.wait(0);
    client.wait(7);
    client.end();
}

TEST(Turns, OnlyOneGroupMeasuresAtATimeAndTheLowestStepComesFirst) {
    constexpr int kRanks = 3;
    constexpr std::size_t kGroups = 3;
    constexpr std::size_t kSteps = 4;
    TurnServer server("127.0.0.1", kGroups);
    EXPECT_EQ(server.turn().number, 0);
    Serving serving(server);

    std::atomic<int> measuring[kGroups] = {};
    std::atomic<bool> overlapped = false;
    std::mutex mutex;
    std::vector<std::size_t> steps;  // in the order of the turns
    std::vector<std::thread> ranks;
    for (std::size_t group = 0; group < kGroups; ++group) {
        for (int rank = 0; rank < kRanks; ++rank) {
            ranks.emplace_back([&, group, rank] {
                TurnClient client(server.address(group), rank, kRanks);
                for (std::size_t step = 0; step < kSteps; ++step) {
                    // Groups need different numbers of rounds for a step.
                    for (std::size_t round = 0; round < group + 1; ++round) {
                        client.wait(step);
                        ++measuring[group];
                        for (std::size_t other = 0; other < kGroups; ++other) {
                            if (other != group && measuring[other] != 0) {
                                overlapped = true;
                            }
                        }
                        if (rank == 0) {
                            const std::scoped_lock lock(mutex);
                            steps.push_back(step);
                        }
                        --measuring[group];
                    }
                }
                client.end();
            });
        }
    }
    for (std::thread& rank : ranks) {
        rank.join();
    }
    EXPECT_FALSE(overlapped);
    EXPECT_EQ(steps.size(), kSteps * (1 + 2 + 3));
    EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
    const std::scoped_lock lock(serving.mutex);
    EXPECT_EQ(server.turn().number, steps.size());
    EXPECT_EQ(server.turn().step, kSteps - 1);
}

TEST(Turns, AGroupThatEndsIsNotWaitedFor) {
    TurnServer server("127.0.0.1", 2);
    Serving serving(server);
    TurnClient stays(server.address(0), 0, 1);
    {
        TurnClient leaves(server.address(1), 0, 1);
        std::thread other([&] { leaves.wait(0); });
        stays.wait(0);
        // Both stand at step 0; whoever was first, the other's turn comes when this one waits again.
        std::thread again([&] { stays.wait(1); });
        other.join();
        leaves.end();
        again.join();
    }
    stays.wait(2);
    const std::scoped_lock lock(serving.mutex);
    EXPECT_TRUE(server.ended(1));
    EXPECT_FALSE(server.broken(1));
    EXPECT_FALSE(server.ended(0));
}

TEST(Turns, AGroupWhoseProcessesNeverCameCanBeEnded) {
    TurnServer server("127.0.0.1", 2);
    server.end_group(1);
    const Serving serving(server);
    TurnClient client(server.address(0), 0, 1);
    client.wait(0);
}

/// A bare connection to the server's port.
int connect_to(const std::string& address) {
    const std::size_t begin = address.find(':') + 1;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(begin))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_TRUE(socket >= 0 && connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    return socket;
}

void send_text(const int socket, const std::string& text) {
    ASSERT_EQ(send(socket, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

/// Waits until the server has closed the connection.
bool closed(const int socket) {
    char byte = 0;
    return recv(socket, &byte, 1, 0) <= 0;
}

TEST(Turns, StrangersAreTurnedAway) {
    TurnServer server("127.0.0.1", 1);
    Serving serving(server);
    std::vector<std::string> forged = {"GET / HTTP/1.1\n", "awaken-bench 0123 0 0 1\n", std::string(5000, 'x')};
    // The right token, but no such group, and a rank beyond the ranks.
    const std::string address = server.address(0);
    const std::size_t end = address.rfind(':');
    const std::string token = address.substr(0, end).substr(address.substr(0, end).rfind(':') + 1);
    forged.push_back("awaken-bench " + token + " 1 0 1\n");
    forged.push_back("awaken-bench " + token + " 0 1 1\n");
    for (const std::string& text : forged) {
        const int socket = connect_to(address);
        send_text(socket, text);
        EXPECT_TRUE(closed(socket)) << text.substr(0, 40);
        close(socket);
    }
    const std::scoped_lock lock(serving.mutex);
    EXPECT_FALSE(server.broken(0));
}

TEST(Turns, ARankThatBreaksOffIsNoticed) {
    TurnServer server("127.0.0.1", 1);
    const std::string address = server.address(0);
    const std::size_t end = address.rfind(':');
    const std::string token = address.substr(0, end).substr(address.substr(0, end).rfind(':') + 1);
    const int socket = connect_to(address);
    send_text(socket, "awaken-bench " + token + " 0 0 2\nwait 0\n");
    server.serve(1000);  // accepts
    server.serve(1000);  // reads
    EXPECT_FALSE(server.broken(0));
    close(socket);
    server.serve(1000);
    EXPECT_TRUE(server.broken(0));
}

TEST(Turns, AServerThatHasGoneIsAnError) {
    std::string address;
    {
        const TurnServer server("127.0.0.1", 1);
        address = server.address(0);
    }
    EXPECT_THROW(TurnClient(address, 0, 1), Error);
    EXPECT_THROW(TurnClient("nonsense", 0, 1), Error);
}

}  // namespace
}  // namespace awaken::bench
