#include "probe/checks.h"

#include <numeric>
#include <type_traits>

#include "mpi/mpi_functions.h"

// A check is a struct whose run() is a template over the function's type, so that one text serves the blocking, the
// nonblocking and the persistent form of a function, with counts of either type. Rank 0 is the root and the sender,
// rank 1 its peer; further ranks take part in collectives.
namespace awaken::probe {
namespace {

/// The type of counts and displacements in a form of the functions.
struct IntCounts {
    using Count = int;
    using Displacement = int;
};
struct LargeCounts {
    using Count = MPI_Count;
    using Displacement = MPI_Aint;
};

/// Calls a collective in whatever form it is, and completes it.
template <typename F, typename... A>
void carry_out(const Trial& trial, const F function, A... arguments) {
    if constexpr (std::is_invocable_v<F, A...>) {
        trial.require(function(arguments...));
    } else if constexpr (std::is_invocable_v<F, A..., MPI_Request*>) {
        MPI_Request request = MPI_REQUEST_NULL;
        trial.require(function(arguments..., &request));
        trial.wait(request);
    } else {
        MPI_Request request = MPI_REQUEST_NULL;
        trial.require(function(arguments..., MPI_INFO_NULL, &request));
        trial.run_persistent(request);
    }
}

/// One block of values per rank, one after another.
Values blocks(const Trial& trial, const auto& block_of_rank) {
    Values all;
    for (int r = 0; r < trial.ranks(); ++r) {
        const Values block = block_of_rank(r);
        all.insert(all.end(), block.begin(), block.end());
    }
    return all;
}

/// The sums of numbers() over the ranks from 0 to `last`.
Values sums(const int last, const std::size_t count) {
    Values total(count, 0);
    for (int r = 0; r <= last; ++r) {
        const Values values = numbers(r, count);
        for (std::size_t i = 0; i < count; ++i) {
            total[i] += values[i];
        }
    }
    return total;
}

Values part(const Values& values, const std::size_t first, const std::size_t count) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

/// Counts that differ from rank to rank, and the displacements of blocks that follow each other.
template <typename Form>
struct Shares {
    std::vector<typename Form::Count> counts;
    std::vector<typename Form::Displacement> displacements;
    std::size_t total = 0;

    Shares(const Trial& trial, const int count) {
        for (int r = 0; r < trial.ranks(); ++r) {
            displacements.push_back(static_cast<typename Form::Displacement>(total));
            counts.push_back(count + r);
            total += static_cast<std::size_t>(count + r);
        }
    }
    [[nodiscard]] std::size_t of(const int rank) const { return static_cast<std::size_t>(counts[std::size_t(rank)]); }
};

// ---- point-to-point
// --------------------------------------------------------------------------------------------------

/// Runs `sender` at rank 0 and `receiver` at rank 1, with every size and with either kind of memory on the other side.
void between_two(const Trial& trial, const auto& sender, const auto& receiver) {
    for (const int count : Trial::counts()) {
        for (const bool same_kind : {false, true}) {
            trial.barrier();
            if (trial.rank() == 0) {
                sender(count, same_kind);
            }
            if (trial.rank() == 1) {
                receiver(count, same_kind);
            }
        }
    }
}

/// The receive is posted before the send may begin, which MPI_Rsend needs.
void receive_from_0(const Trial& trial, const int count, const bool same_kind) {
    const Integers buffer = trial.for_peer(same_kind, Values(static_cast<std::size_t>(count), kBlank));
    MPI_Request request = MPI_REQUEST_NULL;
    trial.require(MPI_Irecv(buffer.data(), count, MPI_INT, 0, trial.tag(), trial.communicator(), &request));
    trial.require(MPI_Send(nullptr, 0, MPI_INT, 0, trial.tag(), trial.communicator()));
    trial.wait(request);
    Trial::expect(buffer, numbers(0, static_cast<std::size_t>(count)));
}

void await_receiver(const Trial& trial) {
    trial.require(MPI_Recv(nullptr, 0, MPI_INT, 1, trial.tag(), trial.communicator(), MPI_STATUS_IGNORE));
}

enum class Completion : std::uint8_t { by_wait, persistent };

/// MPI_Send and its kin. `completion` is that of forms with a request.
template <Completion completion = Completion::by_wait>
struct Sends {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const auto send = [&](const int count, bool /*same_kind*/) {
            const Integers buffer = trial.holding(numbers(0, static_cast<std::size_t>(count)));
            await_receiver(trial);
            const auto call = [&](auto... request) {
                trial.require(
                    function(buffer.data(), count, MPI_INT, 1, trial.tag(), trial.communicator(), request...));
            };
            if constexpr (std::is_invocable_v<F, void*, int, MPI_Datatype, int, int, MPI_Comm>) {
                call();
            } else {
                MPI_Request request = MPI_REQUEST_NULL;
                call(&request);
                completion == Completion::persistent ? trial.run_persistent(request) : trial.wait(request);
            }
            Trial::expect(buffer, numbers(0, static_cast<std::size_t>(count)), "the send buffer");
        };
        between_two(trial, send, [&](const int count, const bool same) { receive_from_0(trial, count, same); });
    }
};

/// The buffered modes, which need memory to copy to.
template <Completion completion = Completion::by_wait>
struct BufferedSends {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form form) {
        const auto largest = static_cast<std::size_t>(Trial::counts().back());
        std::vector<std::byte> space(2 * (largest * sizeof(std::int32_t) + MPI_BSEND_OVERHEAD));
        trial.require(MPI_Buffer_attach(space.data(), static_cast<int>(space.size())));
        Sends<completion>::run(trial, function, form);
        void* detached = nullptr;
        int size = 0;
        trial.require(MPI_Buffer_detach(&detached, &size));
    }
};

void send_to_1(const Trial& trial, const int count, const bool same_kind) {
    const Integers buffer = trial.for_peer(same_kind, numbers(0, static_cast<std::size_t>(count)));
    trial.require(MPI_Send(buffer.data(), count, MPI_INT, 1, trial.tag(), trial.communicator()));
}

template <Completion completion = Completion::by_wait>
struct Receives {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const auto receive = [&](const int count, bool /*same_kind*/) {
            const Integers buffer = trial.blank(static_cast<std::size_t>(count));
            const auto call = [&](auto* last) {
                trial.require(function(buffer.data(), count, MPI_INT, 0, trial.tag(), trial.communicator(), last));
            };
            if constexpr (std::is_invocable_v<F, void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*> &&
                          !std::is_invocable_v<F, void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status*>) {
                MPI_Request request = MPI_REQUEST_NULL;
                call(&request);
                completion == Completion::persistent ? trial.run_persistent(request) : trial.wait(request);
            } else {
                MPI_Status status;
                call(&status);
            }
            Trial::expect(buffer, numbers(0, static_cast<std::size_t>(count)));
        };
        between_two(trial, [&](const int count, const bool same) { send_to_1(trial, count, same); }, receive);
    }
};

struct MatchedReceives {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const auto receive = [&](const int count, bool /*same_kind*/) {
            const Integers buffer = trial.blank(static_cast<std::size_t>(count));
            MPI_Message message{};
            MPI_Status status;
            trial.require(MPI_Mprobe(0, trial.tag(), trial.communicator(), &message, &status));
            if constexpr (std::is_invocable_v<F, void*, int, MPI_Datatype, MPI_Message*, MPI_Status*>) {
                trial.require(function(buffer.data(), count, MPI_INT, &message, &status));
            } else {
                MPI_Request request = MPI_REQUEST_NULL;
                trial.require(function(buffer.data(), count, MPI_INT, &message, &request));
                trial.wait(request);
            }
            Trial::expect(buffer, numbers(0, static_cast<std::size_t>(count)));
        };
        between_two(trial, [&](const int count, const bool same) { send_to_1(trial, count, same); }, receive);
    }
};

/// Both at once, between ranks 0 and 1.
struct Exchanges {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const auto exchange = [&](const int count, bool /*same_kind*/) {
            const int peer = 1 - trial.rank();
            const Integers sent = trial.holding(numbers(trial.rank(), static_cast<std::size_t>(count)));
            const Integers received = trial.blank(static_cast<std::size_t>(count));
            const auto call = [&](auto* last) {
                trial.require(function(sent.data(), count, MPI_INT, peer, trial.tag(), received.data(), count, MPI_INT,
                                       peer, trial.tag(), trial.communicator(), last));
            };
            if constexpr (std::is_invocable_v<F, void*, int, MPI_Datatype, int, int, void*, int, MPI_Datatype, int, int,
                                              MPI_Comm, MPI_Status*>) {
                MPI_Status status;
                call(&status);
            } else {
                MPI_Request request = MPI_REQUEST_NULL;
                call(&request);
                trial.wait(request);
            }
            Trial::expect(received, numbers(peer, static_cast<std::size_t>(count)));
        };
        between_two(trial, exchange, exchange);
    }
};

struct ReplacingExchanges {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const auto exchange = [&](const int count, bool /*same_kind*/) {
            const int peer = 1 - trial.rank();
            const Integers buffer = trial.holding(numbers(trial.rank(), static_cast<std::size_t>(count)));
            const auto call = [&](auto* last) {
                trial.require(function(buffer.data(), count, MPI_INT, peer, trial.tag(), peer, trial.tag(),
                                       trial.communicator(), last));
            };
            if constexpr (std::is_invocable_v<F, void*, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Status*>) {
                MPI_Status status;
                call(&status);
            } else {
                MPI_Request request = MPI_REQUEST_NULL;
                call(&request);
                trial.wait(request);
            }
            Trial::expect(buffer, numbers(peer, static_cast<std::size_t>(count)), "the buffer");
        };
        between_two(trial, exchange, exchange);
    }
};

/// The MPI's functions, of a type that depends on F: what uses it is looked at only where F is declared.
template <typename F>
const std::conditional_t<std::is_void_v<F>, F, bench::MpiFunctions>& table_for() {
    return bench::reached_functions();
}

/// MPI_Psend_init or MPI_Precv_init, whichever is `of_interest`: only its buffer is of the cell's kind in the first
/// round. They match only each other.
template <bool sends>
struct Partitioned {
    template <typename F, typename Form>
    static void run(Trial& trial, F /*function*/, Form /*form*/) {
        constexpr int kPartitions = 4;
        const auto& mpi = table_for<F>();
        const auto sender = [&](const int count, const bool same_kind) {
            const Integers buffer = trial.for_peer(sends || same_kind, numbers(0, static_cast<std::size_t>(count)));
            MPI_Request request = MPI_REQUEST_NULL;
            trial.require(mpi.Psend_init(buffer.data(), kPartitions, count / kPartitions, MPI_INT, 1, trial.tag(),
                                         trial.communicator(), MPI_INFO_NULL, &request));
            trial.require(MPI_Start(&request));
            for (int partition = 0; partition < kPartitions; ++partition) {
                trial.require(mpi.Pready(partition, request));
            }
            trial.wait(request);
            trial.require(MPI_Request_free(&request));
        };
        const auto receiver = [&](const int count, const bool same_kind) {
            const Integers buffer =
                trial.for_peer(!sends || same_kind, Values(static_cast<std::size_t>(count), kBlank));
            MPI_Request request = MPI_REQUEST_NULL;
            trial.require(mpi.Precv_init(buffer.data(), kPartitions, count / kPartitions, MPI_INT, 0, trial.tag(),
                                         trial.communicator(), MPI_INFO_NULL, &request));
            trial.run_persistent(request);
            Trial::expect(buffer, numbers(0, static_cast<std::size_t>(count)));
        };
        between_two(trial, sender, receiver);
    }
};

// ---- collectives
// -----------------------------------------------------------------------------------------------------

struct Bcast {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers buffer = trial.rank() == 0 ? trial.holding(numbers(0, n)) : trial.blank(n);
            carry_out(trial, function, buffer.data(), count, MPI_INT, 0, trial.communicator());
            Trial::expect(buffer, numbers(0, n), "the buffer");
        }
    }
};

/// MPI_Gather, and MPI_Allgather without a root.
template <bool rooted>
struct Gathers {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers sent = trial.holding(numbers(trial.rank(), n));
            const Integers received = trial.blank(n * static_cast<std::size_t>(trial.ranks()));
            if constexpr (rooted) {
                carry_out(trial, function, sent.data(), count, MPI_INT, received.data(), count, MPI_INT, 0,
                          trial.communicator());
            } else {
                carry_out(trial, function, sent.data(), count, MPI_INT, received.data(), count, MPI_INT,
                          trial.communicator());
            }
            if (!rooted || trial.rank() == 0) {
                Trial::expect(received, blocks(trial, [&](const int r) { return numbers(r, n); }));
            }
        }
    }
};

template <bool rooted>
struct VaryingGathers {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const Shares<Form> shares(trial, count);
            const std::size_t own = shares.of(trial.rank());
            const Integers sent = trial.holding(numbers(trial.rank(), own));
            const Integers received = trial.blank(shares.total);
            const auto own_count = static_cast<typename Form::Count>(own);
            if constexpr (rooted) {
                carry_out(trial, function, sent.data(), own_count, MPI_INT, received.data(), shares.counts.data(),
                          shares.displacements.data(), MPI_INT, 0, trial.communicator());
            } else {
                carry_out(trial, function, sent.data(), own_count, MPI_INT, received.data(), shares.counts.data(),
                          shares.displacements.data(), MPI_INT, trial.communicator());
            }
            if (!rooted || trial.rank() == 0) {
                Trial::expect(received, blocks(trial, [&](const int r) { return numbers(r, shares.of(r)); }));
            }
        }
    }
};

struct Scatter {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Values all = blocks(trial, [&](const int r) { return numbers(r, n); });
            const Integers sent = trial.holding(all);
            const Integers received = trial.blank(n);
            carry_out(trial, function, sent.data(), count, MPI_INT, received.data(), count, MPI_INT, 0,
                      trial.communicator());
            Trial::expect(received, numbers(trial.rank(), n));
        }
    }
};

struct Scatterv {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const Shares<Form> shares(trial, count);
            const std::size_t own = shares.of(trial.rank());
            const Integers sent = trial.holding(blocks(trial, [&](const int r) { return numbers(r, shares.of(r)); }));
            const Integers received = trial.blank(own);
            carry_out(trial, function, sent.data(), shares.counts.data(), shares.displacements.data(), MPI_INT,
                      received.data(), static_cast<typename Form::Count>(own), MPI_INT, 0, trial.communicator());
            Trial::expect(received, numbers(trial.rank(), own));
        }
    }
};

/// What rank `from` sends to rank `to` in an all-to-all.
Values pair_numbers(const Trial& trial, const int from, const int to, const std::size_t count) {
    return numbers(from * trial.ranks() + to, count);
}

struct Alltoall {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const int own = trial.rank();
            const Integers sent =
                trial.holding(blocks(trial, [&](const int to) { return pair_numbers(trial, own, to, n); }));
            const Integers received = trial.blank(n * static_cast<std::size_t>(trial.ranks()));
            carry_out(trial, function, sent.data(), count, MPI_INT, received.data(), count, MPI_INT,
                      trial.communicator());
            Trial::expect(received, blocks(trial, [&](const int from) { return pair_numbers(trial, from, own, n); }));
        }
    }
};

/// Rank r takes `count + r` elements from each.
struct Alltoallv {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const int own = trial.rank();
            const Shares<Form> sends(trial, count);
            const std::size_t each = sends.of(own);
            std::vector<typename Form::Count> counts;
            std::vector<typename Form::Displacement> displacements;
            for (int r = 0; r < trial.ranks(); ++r) {
                counts.push_back(static_cast<typename Form::Count>(each));
                displacements.push_back(static_cast<typename Form::Displacement>(each * static_cast<std::size_t>(r)));
            }
            const Integers sent =
                trial.holding(blocks(trial, [&](const int to) { return pair_numbers(trial, own, to, sends.of(to)); }));
            const Integers received = trial.blank(each * static_cast<std::size_t>(trial.ranks()));
            carry_out(trial, function, sent.data(), sends.counts.data(), sends.displacements.data(), MPI_INT,
                      received.data(), counts.data(), displacements.data(), MPI_INT, trial.communicator());
            Trial::expect(received,
                          blocks(trial, [&](const int from) { return pair_numbers(trial, from, own, each); }));
        }
    }
};

/// As MPI_Alltoall, with displacements in bytes and a type for each peer.
struct Alltoallw {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const int own = trial.rank();
            const auto ranks = static_cast<std::size_t>(trial.ranks());
            const std::vector<typename Form::Count> counts(ranks, count);
            const std::vector<MPI_Datatype> types(ranks, MPI_INT);
            std::vector<typename Form::Displacement> displacements;
            for (std::size_t r = 0; r < ranks; ++r) {
                displacements.push_back(static_cast<typename Form::Displacement>(r * n * sizeof(std::int32_t)));
            }
            const Integers sent =
                trial.holding(blocks(trial, [&](const int to) { return pair_numbers(trial, own, to, n); }));
            const Integers received = trial.blank(n * ranks);
            carry_out(trial, function, sent.data(), counts.data(), displacements.data(), types.data(), received.data(),
                      counts.data(), displacements.data(), types.data(), trial.communicator());
            Trial::expect(received, blocks(trial, [&](const int from) { return pair_numbers(trial, from, own, n); }));
        }
    }
};

struct Reduce {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers sent = trial.holding(numbers(trial.rank(), n));
            const Integers received = trial.blank(n);
            carry_out(trial, function, sent.data(), received.data(), count, MPI_INT, MPI_SUM, 0, trial.communicator());
            if (trial.rank() == 0) {
                Trial::expect(received, sums(trial.ranks() - 1, n));
            }
        }
    }
};

/// MPI_Allreduce, MPI_Scan and MPI_Exscan: rank r is to have the sums over the ranks up to last_of(r).
template <int (*last_of)(const Trial&)>
struct Reductions {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers sent = trial.holding(numbers(trial.rank(), n));
            const Integers received = trial.blank(n);
            carry_out(trial, function, sent.data(), received.data(), count, MPI_INT, MPI_SUM, trial.communicator());
            // What MPI_Exscan leaves at rank 0 is undefined.
            if (last_of(trial) >= 0) {
                Trial::expect(received, sums(last_of(trial), n));
            }
        }
    }
};
int every_rank(const Trial& trial) {
    return trial.ranks() - 1;
}
int up_to_own_rank(const Trial& trial) {
    return trial.rank();
}
int before_own_rank(const Trial& trial) {
    return trial.rank() - 1;
}

struct ReduceScatter {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const Shares<Form> shares(trial, count);
            const Integers sent = trial.holding(numbers(trial.rank(), shares.total));
            const Integers received = trial.blank(shares.of(trial.rank()));
            carry_out(trial, function, sent.data(), received.data(), shares.counts.data(), MPI_INT, MPI_SUM,
                      trial.communicator());
            const auto first = static_cast<std::size_t>(shares.displacements[std::size_t(trial.rank())]);
            Trial::expect(received, part(sums(trial.ranks() - 1, shares.total), first, shares.of(trial.rank())));
        }
    }
};

struct ReduceScatterBlock {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const std::size_t total = n * static_cast<std::size_t>(trial.ranks());
            const Integers sent = trial.holding(numbers(trial.rank(), total));
            const Integers received = trial.blank(n);
            carry_out(trial, function, sent.data(), received.data(), count, MPI_INT, MPI_SUM, trial.communicator());
            const std::size_t first = n * static_cast<std::size_t>(trial.rank());
            Trial::expect(received, part(sums(trial.ranks() - 1, total), first, n));
        }
    }
};

struct ReduceLocal {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers input = trial.holding(numbers(0, n));
            const Integers result = trial.holding(numbers(1, n));
            trial.require(function(input.data(), result.data(), count, MPI_INT, MPI_SUM));
            Trial::expect(result, sums(1, n), "the result");
        }
    }
};

// ---- neighbourhood collectives: a ring, each rank sends to the next -------------------------------------------------

class Ring {
  public:
    explicit Ring(const Trial& trial) : _trial(trial), _before((trial.rank() + trial.ranks() - 1) % trial.ranks()) {
        const int next = (trial.rank() + 1) % trial.ranks();
        trial.require(MPI_Dist_graph_create_adjacent(trial.communicator(), 1, &_before, MPI_UNWEIGHTED, 1, &next,
                                                     MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &_communicator));
        trial.require(MPI_Comm_set_errhandler(_communicator, MPI_ERRORS_RETURN));
    }
    ~Ring() {
        // After an error the job is about to end.
        if (std::uncaught_exceptions() == 0) {
            MPI_Comm_free(&_communicator);
        }
    }
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] int before() const noexcept { return _before; }

  private:
    const Trial& _trial;
    int _before;
    MPI_Comm _communicator = MPI_COMM_NULL;
};

/// Runs `call(communicator, send buffer, receive buffer, count)` around the ring.
void around_the_ring(const Trial& trial, const auto& call) {
    const Ring ring(trial);
    for (const int count : Trial::counts()) {
        const auto n = static_cast<std::size_t>(count);
        const Integers sent = trial.holding(numbers(trial.rank(), n));
        const Integers received = trial.blank(n);
        call(ring.communicator(), sent.data(), received.data(), count);
        Trial::expect(received, numbers(ring.before(), n));
    }
}

/// MPI_Neighbor_allgather and MPI_Neighbor_alltoall, which with one neighbour on either side do the same.
struct NeighborBlocks {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        around_the_ring(trial, [&](MPI_Comm ring, auto* sent, auto* received, const int count) {
            carry_out(trial, function, sent, count, MPI_INT, received, count, MPI_INT, ring);
        });
    }
};

struct NeighborAllgatherv {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        around_the_ring(trial, [&](MPI_Comm ring, auto* sent, auto* received, const int count) {
            const typename Form::Count counts = count;
            const typename Form::Displacement displacement = 0;
            carry_out(trial, function, sent, count, MPI_INT, received, &counts, &displacement, MPI_INT, ring);
        });
    }
};

struct NeighborAlltoallv {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        around_the_ring(trial, [&](MPI_Comm ring, auto* sent, auto* received, const int count) {
            const typename Form::Count counts = count;
            const typename Form::Displacement displacement = 0;
            carry_out(trial, function, sent, &counts, &displacement, MPI_INT, received, &counts, &displacement, MPI_INT,
                      ring);
        });
    }
};

struct NeighborAlltoallw {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        around_the_ring(trial, [&](MPI_Comm ring, auto* sent, auto* received, const int count) {
            const typename Form::Count counts = count;
            const MPI_Aint displacement = 0;  // of this type in both forms
            const MPI_Datatype type = MPI_INT;
            carry_out(trial, function, sent, &counts, &displacement, &type, received, &counts, &displacement, &type,
                      ring);
        });
    }
};

// ---- packing
// ---------------------------------------------------------------------------------------------------------

int packed_size(const Trial& trial, const int count) {
    int size = 0;
    trial.require(MPI_Pack_size(count, MPI_INT, trial.communicator(), &size));
    return size;
}

MPI_Aint external_size(const Trial& trial, const int count) {
    MPI_Aint size = 0;
    trial.require(MPI_Pack_external_size("external32", count, MPI_INT, &size));
    return size;
}

/// A buffer of the cell's kind for so many bytes.
Integers room(const Trial& trial, const std::size_t bytes) {
    return trial.blank((bytes + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
}

struct Pack {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers input = trial.holding(numbers(trial.rank(), n));
            const int size = packed_size(trial, count);
            const Integers packed = room(trial, static_cast<std::size_t>(size));
            typename Form::Count position = 0;
            trial.require(function(input.data(), count, MPI_INT, packed.data(), size, &position, trial.communicator()));
            const Values bytes = packed.read();
            Values output(n, kBlank);
            int read_position = 0;
            trial.require(
                MPI_Unpack(bytes.data(), size, &read_position, output.data(), count, MPI_INT, trial.communicator()));
            Trial::expect(output, numbers(trial.rank(), n), "what was packed");
        }
    }
};

struct Unpack {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const int size = packed_size(trial, count);
            Values bytes((static_cast<std::size_t>(size) + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
            const Values values = numbers(trial.rank(), n);
            int written = 0;
            trial.require(MPI_Pack(values.data(), count, MPI_INT, bytes.data(), size, &written, trial.communicator()));
            const Integers packed = trial.holding(bytes);
            const Integers output = trial.blank(n);
            typename Form::Count position = 0;
            trial.require(
                function(packed.data(), size, &position, output.data(), count, MPI_INT, trial.communicator()));
            Trial::expect(output, values, "what was unpacked");
        }
    }
};

/// Sizes and positions of the functions for external data, which are MPI_Aint in the old form.
template <typename Form>
using ExternalPosition = std::conditional_t<std::is_same_v<Form, IntCounts>, MPI_Aint, MPI_Count>;

struct PackExternal {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Integers input = trial.holding(numbers(trial.rank(), n));
            const MPI_Aint size = external_size(trial, count);
            const Integers packed = room(trial, static_cast<std::size_t>(size));
            ExternalPosition<Form> position = 0;
            trial.require(function("external32", input.data(), count, MPI_INT, packed.data(), size, &position));
            const Values bytes = packed.read();
            Values output(n, kBlank);
            MPI_Aint read_position = 0;
            trial.require(
                MPI_Unpack_external("external32", bytes.data(), size, &read_position, output.data(), count, MPI_INT));
            Trial::expect(output, numbers(trial.rank(), n), "what was packed");
        }
    }
};

struct UnpackExternal {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const MPI_Aint size = external_size(trial, count);
            Values bytes((static_cast<std::size_t>(size) + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
            const Values values = numbers(trial.rank(), n);
            MPI_Aint written = 0;
            trial.require(MPI_Pack_external("external32", values.data(), count, MPI_INT, bytes.data(), size, &written));
            const Integers packed = trial.holding(bytes);
            const Integers output = trial.blank(n);
            ExternalPosition<Form> position = 0;
            trial.require(function("external32", packed.data(), size, &position, output.data(), count, MPI_INT));
            Trial::expect(output, values, "what was unpacked");
        }
    }
};

// ---- one-sided: rank 0 works on the window of rank 1
// -----------------------------------------------------------------

class Window {
  public:
    Window(const Trial& trial, const Integers& memory, const std::size_t count) : _trial(trial) {
        trial.require(MPI_Win_create(memory.data(), static_cast<MPI_Aint>(count * sizeof(std::int32_t)),
                                     sizeof(std::int32_t), MPI_INFO_NULL, trial.communicator(), &_window));
        trial.require(MPI_Win_set_errhandler(_window, MPI_ERRORS_RETURN));
    }
    ~Window() {
        if (std::uncaught_exceptions() == 0) {
            MPI_Win_free(&_window);
        }
    }
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    /// Rank 0 works on the window of rank 1, and everybody knows when it is done.
    void access(const auto& work) const {
        if (_trial.rank() == 0) {
            _trial.require(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, _window));
            work(_window);
            _trial.require(MPI_Win_unlock(1, _window));
        }
        _trial.barrier();
        // What others have written becomes visible to a rank's own loads.
        _trial.require(MPI_Win_lock(MPI_LOCK_SHARED, _trial.rank(), 0, _window));
        _trial.require(MPI_Win_unlock(_trial.rank(), _window));
    }

  private:
    const Trial& _trial;
    MPI_Win _window = MPI_WIN_NULL;
};

/// As carry_out(), for operations whose request is complete before the epoch ends.
template <typename F, typename... A>
void operate(const Trial& trial, const F function, A... arguments) {
    if constexpr (std::is_invocable_v<F, A...>) {
        trial.require(function(arguments...));
    } else {
        MPI_Request request = MPI_REQUEST_NULL;
        trial.require(function(arguments..., &request));
        trial.wait(request);
    }
}

/// Windows hold numbers(1), origins numbers(0); afterwards rank 1's window must hold `window`, rank 0's origin and
/// result what the members say.
struct Outcome {
    Values window;
    Values origin;
    Values result;
};

void one_sided(const Trial& trial, const std::size_t count, const Outcome& outcome, const auto& work) {
    const Integers memory = trial.holding(numbers(1, count));
    const Integers origin = trial.holding(numbers(0, count));
    const Integers result = trial.blank(count);
    {
        const Window window(trial, memory, count);
        window.access([&](MPI_Win handle) { work(handle, origin.data(), result.data()); });
    }
    if (trial.rank() == 1) {
        Trial::expect(memory, outcome.window, "the window");
    }
    if (trial.rank() == 0) {
        Trial::expect(origin, outcome.origin, "the origin's buffer");
        Trial::expect(result, outcome.result, "the result");
    }
}

struct Put {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Outcome outcome{numbers(0, n), numbers(0, n), Values(n, kBlank)};
            one_sided(trial, n, outcome, [&](MPI_Win window, auto* origin, auto*) {
                operate(trial, function, origin, count, MPI_INT, 1, 0, count, MPI_INT, window);
            });
        }
    }
};

struct Get {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Outcome outcome{numbers(1, n), numbers(1, n), Values(n, kBlank)};
            one_sided(trial, n, outcome, [&](MPI_Win window, auto* origin, auto*) {
                operate(trial, function, origin, count, MPI_INT, 1, 0, count, MPI_INT, window);
            });
        }
    }
};

struct Accumulate {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Outcome outcome{sums(1, n), numbers(0, n), Values(n, kBlank)};
            one_sided(trial, n, outcome, [&](MPI_Win window, auto* origin, auto*) {
                operate(trial, function, origin, count, MPI_INT, 1, 0, count, MPI_INT, MPI_SUM, window);
            });
        }
    }
};

struct GetAccumulate {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        for (const int count : Trial::counts()) {
            const auto n = static_cast<std::size_t>(count);
            const Outcome outcome{sums(1, n), numbers(0, n), numbers(1, n)};
            one_sided(trial, n, outcome, [&](MPI_Win window, auto* origin, auto* result) {
                operate(trial, function, origin, count, MPI_INT, result, count, MPI_INT, 1, 0, count, MPI_INT, MPI_SUM,
                        window);
            });
        }
    }
};

struct FetchAndOp {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const Outcome outcome{sums(1, 1), numbers(0, 1), numbers(1, 1)};
        one_sided(trial, 1, outcome, [&](MPI_Win window, auto* origin, auto* result) {
            trial.require(function(origin, result, MPI_INT, 1, 0, MPI_SUM, window));
        });
    }
};

struct CompareAndSwap {
    template <typename F, typename Form>
    static void run(Trial& trial, const F function, Form /*form*/) {
        const Integers expected = trial.holding(numbers(1, 1));
        const Outcome outcome{numbers(0, 1), numbers(0, 1), numbers(1, 1)};
        one_sided(trial, 1, outcome, [&](MPI_Win window, auto* origin, auto* result) {
            trial.require(function(origin, expected.data(), result, MPI_INT, 1, 0, window));
        });
    }
};

// ---- the table
// -------------------------------------------------------------------------------------------------------

class Table {
  public:
    void begin_family(const char* const family) { _family = family; }

    template <typename Check, typename Form, typename F>
    void add(const char* const name, const F& function) {
        Function entry{name, _family, {}};
        if constexpr (bench::kDeclared<F>) {
            if (function != nullptr) {
                entry.check = [function](Trial& trial) { Check::run(trial, function, Form{}); };
            }
        }
        entries.push_back(std::move(entry));
    }

    std::vector<Function> entries;

  private:
    const char* _family = "";
};

}  // namespace

std::vector<Function> functions(const bool large_counts) {
    const bench::MpiFunctions& mpi = bench::reached_functions();
    Table table;
// A function with its form for large counts, and one that has none.
#define AWAKEN_PROBE(name, ...)                                \
    table.add<__VA_ARGS__, IntCounts>("MPI_" #name, mpi.name); \
    if (large_counts) table.add<__VA_ARGS__, LargeCounts>("MPI_" #name "_c", mpi.name##_c);
#define AWAKEN_PROBE_SINGLE(name, ...) table.add<__VA_ARGS__, IntCounts>("MPI_" #name, mpi.name);
#define AWAKEN_PROBE_FORMS(name, lower, ...) \
    AWAKEN_PROBE(name, __VA_ARGS__)          \
    AWAKEN_PROBE(I##lower, __VA_ARGS__)      \
    AWAKEN_PROBE(name##_init, __VA_ARGS__)

    table.begin_family("point-to-point");
    AWAKEN_PROBE(Send, Sends<>)
    AWAKEN_PROBE(Bsend, BufferedSends<>)
    AWAKEN_PROBE(Ssend, Sends<>)
    AWAKEN_PROBE(Rsend, Sends<>)
    AWAKEN_PROBE(Isend, Sends<>)
    AWAKEN_PROBE(Ibsend, BufferedSends<>)
    AWAKEN_PROBE(Issend, Sends<>)
    AWAKEN_PROBE(Irsend, Sends<>)
    AWAKEN_PROBE(Send_init, Sends<Completion::persistent>)
    AWAKEN_PROBE(Bsend_init, BufferedSends<Completion::persistent>)
    AWAKEN_PROBE(Ssend_init, Sends<Completion::persistent>)
    AWAKEN_PROBE(Rsend_init, Sends<Completion::persistent>)
    AWAKEN_PROBE_SINGLE(Psend_init, Partitioned<true>)
    AWAKEN_PROBE(Recv, Receives<>)
    AWAKEN_PROBE(Irecv, Receives<>)
    AWAKEN_PROBE(Recv_init, Receives<Completion::persistent>)
    AWAKEN_PROBE_SINGLE(Precv_init, Partitioned<false>)
    AWAKEN_PROBE(Mrecv, MatchedReceives)
    AWAKEN_PROBE(Imrecv, MatchedReceives)
    AWAKEN_PROBE(Sendrecv, Exchanges)
    AWAKEN_PROBE(Isendrecv, Exchanges)
    AWAKEN_PROBE(Sendrecv_replace, ReplacingExchanges)
    AWAKEN_PROBE(Isendrecv_replace, ReplacingExchanges)

    table.begin_family("collective");
    AWAKEN_PROBE_FORMS(Bcast, bcast, Bcast)
    AWAKEN_PROBE_FORMS(Gather, gather, Gathers<true>)
    AWAKEN_PROBE_FORMS(Gatherv, gatherv, VaryingGathers<true>)
    AWAKEN_PROBE_FORMS(Scatter, scatter, Scatter)
    AWAKEN_PROBE_FORMS(Scatterv, scatterv, Scatterv)
    AWAKEN_PROBE_FORMS(Allgather, allgather, Gathers<false>)
    AWAKEN_PROBE_FORMS(Allgatherv, allgatherv, VaryingGathers<false>)
    AWAKEN_PROBE_FORMS(Alltoall, alltoall, Alltoall)
    AWAKEN_PROBE_FORMS(Alltoallv, alltoallv, Alltoallv)
    AWAKEN_PROBE_FORMS(Alltoallw, alltoallw, Alltoallw)
    AWAKEN_PROBE_FORMS(Reduce, reduce, Reduce)
    AWAKEN_PROBE_FORMS(Allreduce, allreduce, Reductions<every_rank>)
    AWAKEN_PROBE_FORMS(Reduce_scatter, reduce_scatter, ReduceScatter)
    AWAKEN_PROBE_FORMS(Reduce_scatter_block, reduce_scatter_block, ReduceScatterBlock)
    AWAKEN_PROBE_FORMS(Scan, scan, Reductions<up_to_own_rank>)
    AWAKEN_PROBE_FORMS(Exscan, exscan, Reductions<before_own_rank>)
    AWAKEN_PROBE(Reduce_local, ReduceLocal)

    table.begin_family("neighbourhood");
    AWAKEN_PROBE_FORMS(Neighbor_allgather, neighbor_allgather, NeighborBlocks)
    AWAKEN_PROBE_FORMS(Neighbor_allgatherv, neighbor_allgatherv, NeighborAllgatherv)
    AWAKEN_PROBE_FORMS(Neighbor_alltoall, neighbor_alltoall, NeighborBlocks)
    AWAKEN_PROBE_FORMS(Neighbor_alltoallv, neighbor_alltoallv, NeighborAlltoallv)
    AWAKEN_PROBE_FORMS(Neighbor_alltoallw, neighbor_alltoallw, NeighborAlltoallw)

    table.begin_family("packing");
    AWAKEN_PROBE(Pack, Pack)
    AWAKEN_PROBE(Unpack, Unpack)
    AWAKEN_PROBE(Pack_external, PackExternal)
    AWAKEN_PROBE(Unpack_external, UnpackExternal)

    table.begin_family("one-sided");
    AWAKEN_PROBE(Put, Put)
    AWAKEN_PROBE(Get, Get)
    AWAKEN_PROBE(Accumulate, Accumulate)
    AWAKEN_PROBE(Get_accumulate, GetAccumulate)
    AWAKEN_PROBE_SINGLE(Fetch_and_op, FetchAndOp)
    AWAKEN_PROBE_SINGLE(Compare_and_swap, CompareAndSwap)
    AWAKEN_PROBE(Rput, Put)
    AWAKEN_PROBE(Rget, Get)
    AWAKEN_PROBE(Raccumulate, Accumulate)
    AWAKEN_PROBE(Rget_accumulate, GetAccumulate)
#undef AWAKEN_PROBE
#undef AWAKEN_PROBE_SINGLE
#undef AWAKEN_PROBE_FORMS
    return table.entries;
}

}  // namespace awaken::probe
