// SPDX-License-Identifier: Apache-2.0
#include "enqueue/ccl_collectives.h"

#include <utility>
#include <vector>

#include "call/stage.h"
#include "enqueue/stream_ccl.h"
#include "gpu/relaxed_capture.h"
#include "mpi/kernel_code.h"
#include "report/totals.h"
#include "transfer/layout.h"
#include "transfer/packer.h"
#include "transfer/pinned_pool.h"

namespace awaken::AWAKEN_ABI {

using coll::Kind;

namespace {

using GivenBuffer = StreamCollective::Buffer;

void require_copy(const gpu::Status& status) {
    if (!status.ok()) {
        throw Error("a copy in a stream failed (" + status.message() + ")",
                    "an error of an earlier kernel of the program is also reported here");
    }
}

/// A buffer that the library cannot use as it is. Its bytes pass through memory of the device, in the stream's order.
struct CarriedBuffer {
    Stage::Located located;
    std::byte* user;
    std::int64_t count;
    std::int64_t bytes;
    bool is_loaded, is_stored;
    transfer::Packer::Memory scratch = {};
    transfer::StagingBlock pinned = {};                            ///< what the CPU packs, and unpacks
    std::shared_ptr<const transfer::TypedMemory> typed = nullptr;  ///< what the GPU packs

    [[nodiscard]] bool needs_cpu() const noexcept { return pinned.data() != nullptr; }
};

/// The buffers of one rank's call.
class CarriedBuffers {
  public:
    CarriedBuffers(Call& call, StreamComm& of) : _call(call), _of(of), _stream(of.stream()->stream) {}

    /// Where the library finds a buffer of `count` elements, or is to put it.
    /// @param apart  in other memory than the buffer's, in any case
    [[nodiscard]] std::byte* place(const GivenBuffer& buffer, const Access access, const bool apart = false) {
        Stage::Located located = Stage(_call).locate(buffer.address, buffer.count, buffer.type);
        auto* const user = static_cast<std::byte*>(const_cast<void*>(buffer.address));
        if (located.type == nullptr) {
            return user;  // nothing travels
        }
        const transfer::Layout& layout = located.type->layout;
        const bool is_near = located.info.kind == gpu::MemoryKind::device && located.info.device == _stream.device;
        if (!apart && is_near && !located.mixed && layout.is_contiguous(buffer.count)) {
            return user + layout.true_begin();
        }
        return carry(std::move(located), user, buffer.count, access);
    }

    /// Queues what comes before the library's part.
    void load() {
        if (_carried == nullptr) {
            return;
        }
        step([](const CarriedBuffer& each) {
            if (each.needs_cpu() && each.is_loaded) {
                transfer::pack(each.located.type->layout, each.user, each.count, each.pinned.data(), each.bytes);
            }
        });
        for (CarriedBuffer& each : *_carried) {
            if (each.is_loaded) {
                copy(each, true);
            }
        }
    }
    /// Queues what comes after it.
    void store() {
        if (_carried == nullptr) {
            return;
        }
        for (CarriedBuffer& each : *_carried) {
            if (each.is_stored) {
                copy(each, false);
            }
        }
        release();
    }
    /// Memory stays until the stream has come here.
    void release() {
        step([](const CarriedBuffer& each) {
            if (each.needs_cpu() && each.is_stored) {
                transfer::unpack(each.located.type->layout, each.user, each.count, each.pinned.data(), each.bytes);
            }
        });
    }
    [[nodiscard]] bool any() const noexcept { return _carried != nullptr; }

  private:
    [[nodiscard]] std::byte* carry(Stage::Located located, std::byte* const user, const std::int64_t count,
                                   const Access access) {
        if (located.mixed) {
            throw ClassedError(MPI_ERR_TYPE,
                               "a datatype spans host and device memory, and the call is queued in a stream",
                               "use memory of one kind");
        }
        Layer& owner = layer();
        const transfer::Layout& layout = located.type->layout;
        CarriedBuffer carried{.located = std::move(located),
                              .user = user,
                              .count = count,
                              .bytes = count * layout.size(),
                              .is_loaded = access != Access::out,
                              .is_stored = access != Access::in};
        const auto bytes = static_cast<std::size_t>(carried.bytes);
        carried.scratch = owner.packer().acquire(_stream.device, bytes);
        if (!carried.scratch) {
            throw ClassedError(MPI_ERR_NO_MEM, "the GPU has no memory for a buffer that passes through it",
                               "free device memory, or pass contiguous device memory");
        }
        const bool has_gaps = !layout.is_contiguous(count);
        // Copies of ordinary memory are not in the order of the stream.
        if (carried.located.info.kind == gpu::MemoryKind::host || (has_gaps && !carried.located.served)) {
            for (const bool beyond_limit : {false, true}) {
                if (!carried.pinned.pinned()) {
                    carried.pinned = owner.pool.acquire(owner.gpu(), bytes, beyond_limit);
                }
            }
            if (!carried.pinned.pinned()) {
                throw ClassedError(MPI_ERR_NO_MEM, "no pinned memory for a buffer that is queued in a stream",
                                   "raise the limit of locked memory, or send less at a time");
            }
            _call.account(report::Path::staged, 0);
        } else if (has_gaps && carried.located.info.device == _stream.device) {
            carried.typed = carried.located.type->memory(user, count);
            if (!owner.packer().can_move(_stream.device, *carried.typed)) {
                carried.typed.reset();
            }
        }
        if (_carried == nullptr) {
            _carried = std::make_shared<std::vector<CarriedBuffer>>();
        }
        _carried->push_back(std::move(carried));
        return _carried->back().scratch.data();
    }

    void copy(CarriedBuffer& each, const bool loads) {
        gpu::Runtime& runtime = layer().gpu();
        std::byte* const scratch = each.scratch.data();
        const transfer::Layout& layout = each.located.type->layout;
        const auto move = [&](std::byte* const user, std::byte* const there, const std::int64_t bytes) {
            const auto length = static_cast<std::size_t>(bytes);
            require_copy(report::counted(report::Mover::engine, length,
                                         runtime.copy(loads ? there : user, loads ? user : there, length, _stream)));
        };
        if (each.needs_cpu()) {
            move(each.pinned.data(), scratch, each.bytes);
        } else if (layout.is_contiguous(each.count)) {
            move(each.user + layout.true_begin(), scratch, each.bytes);
        } else if (each.typed != nullptr) {
            const transfer::Packer::Side packed{scratch}, memory{nullptr, each.typed.get(), 0};
            require_copy(layer().packer().move(loads ? packed : memory, loads ? memory : packed, each.bytes, _stream));
        } else {
            std::byte* next = scratch;
            layout.for_each_block(each.count, each.bytes, [&](const transfer::StridedBlock& block) {
                for (std::int64_t row = 0; row < block.rows; ++row) {
                    move(each.user + block.offset + row * block.pitch, std::exchange(next, next + block.width),
                         block.width);
                }
            });
        }
    }

    /// Lets the thread do something with each buffer when the stream has come so far. The stream waits for it if there
    /// is something to do for the CPU.
    template <class Work>
    void step(const Work& work) {
        const auto operation = std::make_shared<Enqueued>();
        operation->waits = false;
        for (const CarriedBuffer& each : *_carried) {
            operation->waits = operation->waits || each.needs_cpu();
        }
        operation->start = [carried = _carried, work](MPI_Request* const begun) {
            for (const CarriedBuffer& each : *carried) {
                work(each);
            }
            *begun = MPI_REQUEST_NULL;
            return int{MPI_SUCCESS};
        };
        _of.enqueue({&operation, 1}, true);
    }

    Call& _call;
    StreamComm& _of;
    const gpu::StreamHandle _stream;
    std::shared_ptr<std::vector<CarriedBuffer>> _carried;  ///< null: none
};

/// The same part of a buffer for each rank.
GivenBuffer of_all(const GivenBuffer& buffer, const int ranks) noexcept {
    return {buffer.address, buffer.count * ranks, buffer.type};
}

}  // namespace

bool queue_by_library(Call& call, StreamComm& of, const StreamCollective& collective) {
    StreamCcl* const library = of.library().get();
    if (library == nullptr) {
        return false;
    }
    const gpu::CallsTogether together;
    const Native& real = layer().real;
    const Kind kind = collective.kind;
    const GivenBuffer &send = collective.send, &receive = collective.receive;
    const std::uint32_t code = coll::is_reduction(kind) ? kernel_code(real, collective.op, receive.type) : 0;
    // Of one rank's part, or of the whole.
    const std::int64_t bytes = kind != Kind::barrier ? bytes_of(real, receive.count, receive.type) : 0;
    const std::uint64_t capture = of.capture();
    if (!library->takes(kind, code, static_cast<std::uint64_t>(bytes))) {
        return false;
    }
    of.throw_failure();
    if (capture != 0) {
        of.release_held_back();
    } else {
        StreamComm::flush_plain();
    }
    if (bytes == 0 && kind != Kind::barrier) {
        return true;
    }
    const int ranks = library->size();
    const bool in_place = send.address == MPI_IN_PLACE;
    StreamCcl::Operation operation{.kind = kind, .code = code, .root = collective.root};
    operation.block_bytes = static_cast<std::uint64_t>(bytes);
    operation.elements = static_cast<std::uint64_t>(kind == Kind::broadcast ? bytes : receive.count);
    CarriedBuffers buffers(call, of);
    std::int64_t all = bytes;
    switch (kind) {
        case Kind::allreduce:
            operation.receive = buffers.place(receive, in_place ? Access::inout : Access::out);
            operation.send = in_place ? operation.receive : buffers.place(send, Access::in);
            break;
        case Kind::broadcast:
            operation.send = operation.receive =
                buffers.place(receive, library->rank() == collective.root ? Access::in : Access::out);
            break;
        case Kind::allgather:
            all *= ranks;
            operation.receive = buffers.place(of_all(receive, ranks), in_place ? Access::inout : Access::out);
            operation.send = in_place ? operation.receive + bytes * library->rank() : buffers.place(send, Access::in);
            break;
        case Kind::alltoall:
            // The library sends from no memory that it receives into.
            all *= ranks;
            operation.send = in_place ? buffers.place(of_all(receive, ranks), Access::in, true)
                                      : buffers.place(of_all(send, ranks), Access::in);
            operation.receive = buffers.place(of_all(receive, ranks), Access::out);
            break;
        case Kind::reduce_scatter:
            // In place the result goes where other parts lie, which the library still reads.
            operation.send = buffers.place(of_all(in_place ? receive : send, ranks), Access::in);
            operation.receive = buffers.place(receive, Access::out, in_place);
            break;
        default:
            break;
    }
    call.account(report::Path::ccl, all);
    if (!buffers.any()) {
        library->queue(operation, capture);
        return true;
    }
    buffers.load();
    try {
        library->queue(operation, capture);
    } catch (const Error&) {
        buffers.release();
        throw;
    }
    buffers.store();
    return true;
}

}  // namespace awaken::AWAKEN_ABI
