// SPDX-License-Identifier: Apache-2.0
// Turns between contenders that cannot share processes (another MPI, another environment).
//
// Each such group of contenders is a launch of its own (mpiexec ... awaken bench ...). So that they are measured in the
// same minutes and never at the same time, every rank of every group asks the process that started them for its turn
// before each round, and sleeps in a socket until it gets it: a rank that waited in MPI would keep a core busy.
//
// The protocol is lines of text over TCP, one connection a rank:
//     rank -> server   awaken-bench TOKEN GROUP RANK RANKS
//     rank -> server   wait STEP        my group is about to measure step STEP (types x sizes, counted from 0)
//     server -> rank   go
//     rank -> server   end              nothing more will be measured
// TOKEN keeps others off the port. Ranks find it with the address in a file that only their user may read.
// A group's turn ends when all its ranks wait again or have ended. The next turn goes to the group with the lowest
// step, and among those to the one that had its turn longest ago.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace awaken::bench {

/// The rank's end. Without an address it lets everything pass at once.
class TurnClient {
  public:
    TurnClient() = default;
    /// `address`: HOST:PORT:TOKEN:GROUP as the server's address() gives it. Throws Error when there is no answer.
    TurnClient(const std::string& address, int rank, int ranks);
    ~TurnClient();
    TurnClient(TurnClient&& other) noexcept;
    TurnClient& operator=(TurnClient&& other) noexcept;
    TurnClient(const TurnClient&) = delete;
    TurnClient& operator=(const TurnClient&) = delete;

    /// Sleeps until it is this group's turn. Throws Error when the server has gone.
    void wait(std::size_t step);
    /// Says that this rank measures no more. Also done by the destructor.
    void end() noexcept;

  private:
    void send_line(const std::string& line);

    int _socket = -1;
};

/// The server's end.
class TurnServer {
  public:
    /// Listens on `host`, any free port. Throws Error when that is impossible.
    TurnServer(const std::string& host, std::size_t groups);
    ~TurnServer();
    TurnServer(const TurnServer&) = delete;
    TurnServer& operator=(const TurnServer&) = delete;

    /// What ranks of `group` are to be given.
    [[nodiscard]] std::string address(std::size_t group) const;

    /// The turn that was given last.
    struct Turn {
        std::size_t number = 0;  ///< 1 for the first; 0: there was none so far
        std::size_t group = 0;
        std::size_t step = 0;
    };
    [[nodiscard]] const Turn& turn() const noexcept { return _turn; }

    /// Handles what has arrived, waiting up to `timeout_ms` for something to, and gives the next turn if it is time.
    void serve(int timeout_ms);

    /// The processes of `group` have ended: it takes no more part.
    void end_group(std::size_t group);
    [[nodiscard]] bool ended(std::size_t group) const;
    /// True once all ranks of `group` have come.
    [[nodiscard]] bool complete(std::size_t group) const;
    /// How many ranks `group` says it has; 0 until the first of them has come.
    [[nodiscard]] std::size_t ranks(std::size_t group) const;
    /// True when some rank of `group` has broken off without saying that it ends while others are still there.
    [[nodiscard]] bool broken(std::size_t group) const;

  private:
    struct Connection {
        int socket = -1;
        std::string input;
        bool introduced = false;
        std::size_t group = 0;
        bool waiting = false;
        bool ended = false;
        std::size_t step = 0;
    };
    struct Group {
        std::size_t ranks = 0;  ///< 0 until the first rank has said how many there are
        std::size_t introduced = 0;
        std::size_t left = 0;  ///< connections that ended properly
        bool ended = false;
        bool broken = false;
        std::size_t last_turn = 0;  ///< number of the turn that it had last
    };

    void accept_connection();
    void receive(Connection& connection);
    void handle(Connection& connection, const std::string& line);
    void close_connection(Connection& connection);
    void give_turn();

    int _listener = -1;
    std::string _host;
    int _port = 0;
    std::string _token;
    std::vector<Group> _groups;
    std::map<int, Connection> _connections;  ///< by socket
    Turn _turn;
};

}  // namespace awaken::bench
