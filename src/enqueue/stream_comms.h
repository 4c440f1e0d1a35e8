// Communicators with a GPU's stream, and what is queued there: MPI's stream API on any MPI.
//
// An operation is queued in two halves. The stream says when it has come to the operation; then a thread of the layer
// does it, as the function without a stream would. Where the program wants the operation to be over, its stream waits
// for a word that the thread writes. So anything goes that goes without a stream: other nodes, shared GPUs, host
// memory, every datatype, wildcards, and partners that call other functions.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "call/layer.h"
#include "call/request_hash.h"
#include "call/stream_work.h"
#include "stream/steps.h"

namespace awaken::AWAKEN_ABI {

/// A stream of the program as MPIX_Stream_create was told of it.
struct ProgramStream {
    int handle = 0;  ///< the program's MPIX_Stream
    gpu::StreamHandle stream;
    std::atomic<int> communicators{0};  ///< that have it
};

/// One operation in a stream. StreamComm::_mutex guards what the thread changes.
struct Enqueued {
    using Start = std::function<int(MPI_Request*)>;

    std::uint64_t number = 0;                  ///< counts a communicator's operations from 1
    Start start;                               ///< begins the operation without a stream
    bool persistent = false;                   ///< the request stays
    MPI_Request request = MPI_REQUEST_NULL;    ///< of the MPI, while the operation is under way
    MPI_Request program = MPI_REQUEST_NULL;    ///< what the program holds; null once it has given it back
    MPI_Status* told = MPI_STATUS_IGNORE;      ///< where the program wants the status
    bool released = false;                     ///< the program's request goes when the operation is over
    bool over = false;
    MPI_Status status{};
    int error = MPI_SUCCESS;
};

/// A communicator with a stream. Thread-safe.
class StreamComm {
  public:
    /// Operations that are not over; one more waits for the first.
    static constexpr std::uint64_t kMost = 1000;

    /// Throws Error.
    StreamComm(MPI_Comm communicator, std::shared_ptr<ProgramStream> stream, gpu::Runtime& runtime,
               stream::StepKernel& kernel);
    ~StreamComm();
    StreamComm(const StreamComm&) = delete;
    StreamComm& operator=(const StreamComm&) = delete;

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] const std::shared_ptr<ProgramStream>& stream() const noexcept { return _stream; }

    /// Queues operations. With `waits`, what comes after them in the stream waits until they are over. Throws Error;
    /// nothing is queued then.
    void enqueue(std::span<const std::shared_ptr<Enqueued>> operations, bool waits);
    /// The stream waits for operations that were queued before. Throws Error.
    void wait(std::span<const std::shared_ptr<Enqueued>> operations);
    /// The program has given the operation's request to the stream: the status goes to `status`, and the request goes
    /// when the operation is over.
    void take_back(Enqueued& operation, MPI_Status* status);

    // ---- the thread's side

    /// Begins what the stream has come to, and looks whether something is over. True when something has changed.
    bool progress() noexcept;
    /// Ends everything: the device does nothing any more.
    void give_up(const std::string& why) noexcept;

    // ---- errors and ends

    /// Waits until all is over.
    void finish() const noexcept;
    [[nodiscard]] bool is_idle() const noexcept { return _open.load(std::memory_order_acquire) == 0; }
    /// Throws the error of an operation that has failed since it was last asked.
    void throw_failure();

  private:
    using Operations = std::span<const std::shared_ptr<Enqueued>>;
    struct Words {
        std::uint64_t arrived;  ///< the stream has come to the operation with this number
        std::array<std::uint32_t, 1024> done;
    };
    static_assert(kMost < std::tuple_size_v<decltype(Words::done)>);

    [[nodiscard]] stream::Step wait_for(std::uint64_t number) const noexcept;
    void launch(std::span<const stream::Step> steps);
    void refuse_capture() const;
    void begin(const std::shared_ptr<Enqueued>& operation);
    void end(Enqueued& operation);

    const MPI_Comm _communicator;
    const std::shared_ptr<ProgramStream> _stream;
    gpu::Runtime& _runtime;
    stream::StepKernel& _kernel;
    Words* _words = nullptr;
    std::mutex _calls;  ///< held while steps are queued: a full launch queue waits, and the thread goes on meanwhile
    std::uint64_t _last = 0;
    std::atomic<std::uint64_t> _open{0};  ///< operations that are not over
    mutable std::mutex _mutex;
    std::deque<std::shared_ptr<Enqueued>> _queued;
    std::vector<std::shared_ptr<Enqueued>> _under_way;
    std::vector<std::uint64_t> _over;  ///< numbers that are over, while earlier ones are not
    std::atomic<std::uint64_t> _over_to{0};
    std::optional<std::pair<int, std::string>> _failure;  ///< class and text
};

class StreamComms final : public StreamWork {
  public:
    static StreamComms& instance();

    // ---- streams

    /// Throws Error.
    [[nodiscard]] int make_stream(gpu::StreamHandle stream);
    /// Null when the layer has not made it.
    [[nodiscard]] std::shared_ptr<ProgramStream> stream_of(int handle);
    void free_stream(int handle);

    // ---- communicators

    /// Null when the layer has given it no stream.
    [[nodiscard]] std::shared_ptr<StreamComm> find(MPI_Comm communicator);
    /// Throws Error.
    void add(MPI_Comm communicator, const std::shared_ptr<ProgramStream>& stream);
    /// Waits until all is over, and forgets the communicator.
    void remove(MPI_Comm communicator);
    void settle(MPI_Comm communicator) override;
    void made(MPI_Comm communicator, MPI_Request request) override;
    void stop() noexcept override;

    // ---- requests

    /// Makes the request that the program gets for an operation.
    void give_request(const std::shared_ptr<StreamComm>& of, const std::shared_ptr<Enqueued>& operation,
                      MPI_Request* request);
    struct Known {
        std::shared_ptr<StreamComm> of;
        std::shared_ptr<Enqueued> operation;  ///< null: a persistent request that was not started here yet
    };
    /// Throws Error when nothing was queued with the request.
    [[nodiscard]] Known known(MPI_Request request, const char* function);
    /// A persistent request's next operation.
    void started(MPI_Request request, const std::shared_ptr<Enqueued>& operation);
    void forget(MPI_Request request) noexcept;

    /// There is something for the thread.
    void wake() noexcept;
    /// Frees the program's operation (MPI_SUM and its like) when nothing that is queued needs it any more.
    [[nodiscard]] int free_op(MPI_Op* op);

  private:
    StreamComms() = default;
    void run() noexcept;
    [[nodiscard]] bool device_works() noexcept;
    void prepare(int device);

    std::mutex _mutex;
    std::vector<std::shared_ptr<ProgramStream>> _streams;
    std::vector<std::shared_ptr<StreamComm>> _comms;
    std::unordered_map<MPI_Request, Known, RequestHash> _requests;
    std::vector<MPI_Op> _freed_ops;
    struct Device {
        std::unique_ptr<stream::StepKernel> kernel;
        gpu::StreamHandle asked;  ///< without work: tells of errors of all streams, and no capture minds the question
    };
    std::map<int, Device> _devices;
    std::condition_variable _wake;
    bool _has_work = false, _ends = false;
    std::thread _thread;
    static inline thread_local bool is_thread = false;
};

}  // namespace awaken::AWAKEN_ABI
