// SPDX-License-Identifier: Apache-2.0
// MPI's stream API as MPICH has it, and more functions of the same kind.

#include <array>
#include <cctype>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "call/call.h"
#include "call/held_op.h"
#include "call/held_type.h"
#include "call/object_life.h"
#include "call/services.h"
#include "coll/rank_order.h"
#include "enqueue/ccl_collectives.h"
#include "enqueue/natives.h"
#include "enqueue/stream_ccl.h"
#include "enqueue/stream_comms.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Operations = std::vector<std::shared_ptr<Enqueued>>;

/// MPICH's, which has the type only where it has the API. Other MPIs have neither: include/awaken/mpix_stream.h.
using StreamNumber = int;
constexpr StreamNumber kNoStream = 0x3c000000;

/// The frame of all calls, for functions that no MPI header declares.
template <Function function, class Body>
int served(const Body& body) {
    return serve(
        {function, loader::Waits::nowhere,
         [](const void* const erased, Call& call) { return call.returns((*static_cast<const Body*>(erased))(call)); },
         &body});
}

/// The MPI's own function; null where it has none.
template <class Type>
Type* native(const Call& call) noexcept {
    return reinterpret_cast<Type*>(layer().binding.symbol(call.name()));
}

[[noreturn]] void refuse(const Call& call, const int error_class, const std::string& cause, const std::string& remedy) {
    throw ClassedError(error_class, std::string(call.name()) + ": " + cause, remedy);
}

/// Errors belong to the communicator, and its stream is not waited for.
void on(Call& call, const MPI_Comm comm) {
    call.on(NamedObject::of(NamedObject::Type::communicator, comm));
}

// ---- streams --------------------------------------------------------------------------------------------------------

/// Two digits for each byte, in their order in memory.
int info_set_hex(MPI_Info info, const char* key, const void* value, int value_size) {
    return served<Function::MPIX_Info_set_hex>([&](Call& call) {
        if (value == nullptr || value_size < 0) {
            refuse(call, MPI_ERR_ARG, "no value, or one of a negative size", "pass the value's address and its size");
        }
        constexpr char kDigits[] = "0123456789ABCDEF";
        std::string text;
        for (int i = 0; i < value_size; ++i) {
            const unsigned byte = static_cast<const unsigned char*>(value)[i];
            text += kDigits[byte >> 4];
            text += kDigits[byte & 15];
        }
        return layer().real.Info_set(info, key, text.c_str());
    });
}

/// The inverse, which also understands "[8]" for eight zeros, as MPICH 5 writes them.
bool decode_hex(const std::string& text, void* const value, const std::size_t bytes) {
    std::vector<unsigned char> found;
    for (std::size_t at = 0; at < text.size();) {
        if (text[at] == '[') {
            const std::size_t end = text.find(']', at);
            if (end == std::string::npos || end == at + 1 || end - at > 4) {
                return false;
            }
            std::size_t count = 0;
            for (++at; at < end; ++at) {
                if (std::isdigit(static_cast<unsigned char>(text[at])) == 0) {
                    return false;
                }
                count = 10 * count + static_cast<std::size_t>(text[at] - '0');
            }
            found.insert(found.end(), count, 0);
            at = end + 1;
        } else {
            if (at + 2 > text.size() || std::isxdigit(static_cast<unsigned char>(text[at])) == 0 ||
                std::isxdigit(static_cast<unsigned char>(text[at + 1])) == 0) {
                return false;
            }
            found.push_back(static_cast<unsigned char>(std::stoi(text.substr(at, 2), nullptr, 16)));
            at += 2;
        }
    }
    if (found.size() != bytes) {
        return false;
    }
    std::memcpy(value, found.data(), bytes);
    return true;
}

int stream_create(MPI_Info info, StreamNumber* stream) {
    return served<Function::MPIX_Stream_create>([&](Call& call) {
        const std::string type = info_value(info, "type").value_or("");
        if (type != "cudaStream_t" && type != "hipStream_t") {
            if (auto* const make = native<int(MPI_Info, StreamNumber*)>(call)) {
                return make(info, stream);
            }
            refuse(call, MPI_ERR_ARG,
                   type.empty() ? "the info has no \"type\"" : "\"" + type + "\" is not a type of stream",
                   "set \"type\" to \"cudaStream_t\" or \"hipStream_t\"");
        }
        gpu::Runtime& runtime = layer().gpu();
        if (type != runtime.stream_type()) {
            refuse(call, MPI_ERR_ARG,
                   "the stream is a " + type + ", and this process uses " + gpu::to_string(runtime.vendor()),
                   "make the stream before this call, and name its type");
        }
        gpu::StreamHandle made;
        const auto value = info_value(info, "value");
        if (!value || !decode_hex(*value, &made.value, sizeof made.value)) {
            refuse(call, MPI_ERR_ARG, "the info has no \"value\" that is a stream",
                   "MPIX_Info_set_hex(info, \"value\", &stream, sizeof(stream))");
        }
        made.device = runtime.device_to_use();
        std::uint64_t capture = 0;
        if (const gpu::Status status = runtime.capture_of(made, capture); !status.ok()) {
            refuse(call, MPI_ERR_ARG, "the GPU runtime does not know the stream (" + status.message() + ")",
                   "pass the stream's own address to MPIX_Info_set_hex, and make its device current");
        }
        *stream = StreamComms::instance().make_stream(made);
        return int{MPI_SUCCESS};
    });
}

int stream_free(StreamNumber* stream) {
    return served<Function::MPIX_Stream_free>([&](Call& call) {
        const std::shared_ptr<ProgramStream> own = StreamComms::instance().stream_of(*stream);
        if (own == nullptr) {
            if (auto* const free = native<int(StreamNumber*)>(call); free != nullptr && *stream != kNoStream) {
                return free(stream);
            }
            refuse(call, MPI_ERR_ARG, "this is not a stream",
                   "pass a stream that MPIX_Stream_create made, and free it only once");
        }
        // As in MPICH, communicators keep the stream that they have.
        StreamComms::instance().free_stream(*stream);
        *stream = kNoStream;
        return int{MPI_SUCCESS};
    });
}

/// Progress needs no help: the layer has a thread for it.
template <Function function>
int progress_thread(StreamNumber stream) {
    return served<function>([&](Call& call) {
        if (StreamComms::instance().stream_of(stream) == nullptr) {
            if (auto* const own = native<int(StreamNumber)>(call)) {
                return own(stream);
            }
        }
        return int{MPI_SUCCESS};
    });
}

// ---- communicators --------------------------------------------------------------------------------------------------

/// Gives a new communicator its stream. All members call this; `stream` is null for those that have none.
/// @param original  of a copy: the communicator that has the same members
void add_stream(const MPI_Comm made, const std::shared_ptr<ProgramStream>& stream,
                const std::shared_ptr<StreamComm>* const original = nullptr) {
    StreamComms& all = StreamComms::instance();
    const auto meet = [&] {
        if (original == nullptr) {
            all.meet(made);
        }
    };
    try {
        all.add(made, stream);
    } catch (const Error&) {
        static_cast<void>(StreamCcl::agree(made, nullptr));
        meet();
        throw;
    }
    std::shared_ptr<StreamCcl> library = StreamCcl::agree(made, stream != nullptr ? &stream->stream : nullptr);
    const std::shared_ptr<StreamComm> added = all.find(made);
    if (added != nullptr) {
        added->set_library(std::move(library));
    }
    meet();
    if (added != nullptr && original != nullptr && *original != nullptr) {
        added->meet_as(**original);
    }
}

/// MPI_Comm_free and MPI_Comm_disconnect.
struct FreeStreamComm {
    template <Function function>
    static int run(Call& call, MPI_Comm* comm) {
        if (comm != nullptr && layer().stream_work.load(std::memory_order_acquire) != nullptr) {
            call.on(*comm);
            StreamComms::instance().remove(*comm);
        }
        return below<function>()(comm);
    }
};

/// A copy of a communicator has the same stream.
struct CopyStreamComm {
    template <Function function, class... Arguments>
    static int run(Call& call, MPI_Comm comm, Arguments... arguments) {
        call.on(comm);
        const int error = below<function>()(comm, arguments...);
        if (error == MPI_SUCCESS && layer().stream_work.load(std::memory_order_acquire) != nullptr) {
            MPI_Comm* const made = std::get<sizeof...(Arguments) - 1>(std::tuple<Arguments...>(arguments...));
            StreamComms& all = StreamComms::instance();
            if (all.covers(comm)) {
                const std::shared_ptr<StreamComm> found = all.find(comm);
                add_stream(*made, found != nullptr ? found->stream() : nullptr, &found);
            }
        }
        return error;
    }
};

void serve_objects();

int stream_comm_create(MPI_Comm comm, StreamNumber stream, MPI_Comm* newcomm) {
    return served<Function::MPIX_Stream_comm_create>([&](Call& call) {
        call.on(comm);
        const Native& real = layer().real;
        const std::shared_ptr<ProgramStream> own = StreamComms::instance().stream_of(stream);
        int level = MPI_THREAD_SINGLE;
        real.Query_thread(&level);
        const std::array<int, 3> mine{own != nullptr ? 1 : 0, own == nullptr && stream != kNoStream ? 1 : 0,
                                      own != nullptr && level != MPI_THREAD_MULTIPLE ? 1 : 0};
        std::array<int, 3> all{};
        if (const int error = real.Allreduce(mine.data(), all.data(), 3, MPI_INT, MPI_MAX, comm);
            error != MPI_SUCCESS) {
            throw RaisedError(error);
        }
        const auto [any_stream, any_native, any_cannot] = all;
        if (any_stream == 0 && any_native != 0) {
            if (auto* const make = native<int(MPI_Comm, StreamNumber, MPI_Comm*)>(call)) {
                return make(comm, stream, newcomm);
            }
            refuse(call, MPI_ERR_ARG, "some rank passes something that is not a stream",
                   "pass a stream that MPIX_Stream_create made");
        }
        if (any_native != 0) {
            refuse(call, MPI_ERR_ARG, "some rank's stream is not of a GPU", "pass MPIX_STREAM_NULL on that rank");
        }
        if (any_cannot != 0) {
            refuse(call, MPI_ERR_UNSUPPORTED_OPERATION,
                   "a thread of the layer makes the MPI calls, and MPI was not initialised for that on some rank",
                   "call MPI_Init_thread with MPI_THREAD_MULTIPLE (the layer asks for it by itself in programs that "
                   "are linked to MPIX_Stream_comm_create)");
        }
        const int error = real.Comm_dup(comm, newcomm);
        if (error == MPI_SUCCESS) {
            layer().memory_kinds.duplicate(comm, *newcomm);
        }
        if (error == MPI_SUCCESS && any_stream != 0) {
            add_stream(*newcomm, own);
            serve_objects();
        }
        return error;
    });
}

int comm_get_stream(MPI_Comm comm, int index, StreamNumber* stream) {
    return served<Function::MPIX_Comm_get_stream>([&](Call& call) {
        on(call, comm);
        if (const std::shared_ptr<StreamComm> found = StreamComms::instance().find(comm)) {
            if (index != 0) {
                refuse(call, MPI_ERR_ARG, "the communicator has one stream", "ask for number 0");
            }
            *stream = found->stream()->handle;
            return int{MPI_SUCCESS};
        }
        if (auto* const get = native<int(MPI_Comm, int, StreamNumber*)>(call)) {
            return get(comm, index, stream);
        }
        *stream = kNoStream;
        return int{MPI_SUCCESS};
    });
}

// ---- operations -----------------------------------------------------------------------------------------------------

/// The communicator of a call that queues an operation. Null: it is the MPI's to do.
std::shared_ptr<StreamComm> stream_comm(Call& call, const MPI_Comm comm) {
    on(call, comm);
    std::shared_ptr<StreamComm> found = StreamComms::instance().find(comm);
    if (found == nullptr && layer().binding.symbol(call.name()) == nullptr) {
        refuse(call, MPI_ERR_COMM, "the communicator has no stream of a GPU", "make one by MPIX_Stream_comm_create");
    }
    if (found != nullptr) {
        static_cast<void>(found->capture());
    }
    return found;
}

/// What can be wrong is found in the call, since the operation itself runs later.
template <class Count>
void check_type(const Call& call, const Count count, const MPI_Datatype type, const bool holds_large = true) {
    if (count < 0) {
        refuse(call, MPI_ERR_COUNT, "the count is negative", "pass 0 or more");
    }
    if (!holds_large && count > std::numeric_limits<int>::max()) {
        refuse(call, MPI_ERR_COUNT, "this MPI has no functions for counts above 2^31 - 1", "use a larger datatype");
    }
    if (type == MPI_DATATYPE_NULL) {
        refuse(call, MPI_ERR_TYPE, "the datatype is MPI_DATATYPE_NULL", "pass a committed datatype");
    }
}

template <class Count>
void check_message(const Call& call, const Count count, const MPI_Datatype type, const int peer, const int tag,
                   const MPI_Comm comm, const bool receives) {
    check_type(call, count, type, receives ? has_large<Function::Irecv_c>() : has_large<Function::Isend_c>());
    const bool is_wild = receives && peer == MPI_ANY_SOURCE;
    if (peer != MPI_PROC_NULL && !is_wild && !layer().node_peers.has_rank(comm, peer)) {
        refuse(call, MPI_ERR_RANK, "rank " + std::to_string(peer) + " is not in the communicator", "pass a rank of it");
    }
    if ((tag < 0 || tag > greatest_tag()) && !(receives && tag == MPI_ANY_TAG)) {
        refuse(call, MPI_ERR_TAG, "tag " + std::to_string(tag) + " is not between 0 and MPI_TAG_UB", "use another tag");
    }
}

void check_root(const Call& call, const int root, const MPI_Comm comm) {
    if (!layer().node_peers.has_rank(comm, root)) {
        refuse(call, MPI_ERR_ROOT, "root " + std::to_string(root) + " is not in the communicator", "pass a rank of it");
    }
}

std::shared_ptr<const HeldType> held(const MPI_Datatype type) {
    return std::make_shared<const HeldType>(type);
}

/// An operation whose buffers `place` gives to the stage. With `is_read_early` the stream need not wait for it: the
/// buffers may be used again when they have been copied.
template <class Place>
std::shared_ptr<Enqueued> operation(Call& call, const std::shared_ptr<StreamComm>& of, const bool stores,
                                    const Place& place) {
    auto made = std::make_shared<Enqueued>();
    made->stage = of->make_stage(call, place);
    made->stores = made->stage.has_value() && stores;
    made->waits = made->stores || !made->stage.has_value();
    return made;
}

/// Queues one operation; with `request`, nothing waits for it, and the program gets that.
int queue(const std::shared_ptr<StreamComm>& of, const std::shared_ptr<Enqueued>& what, MPI_Request* const request) {
    if (request == nullptr) {
        of->enqueue({&what, 1}, true);
        return MPI_SUCCESS;
    }
    StreamComms::instance().give_request(of, what, request);
    try {
        of->enqueue({&what, 1}, false);
    } catch (const Error&) {
        layer().real.Grequest_complete(*request);
        layer().real.Request_free(request);
        throw;
    }
    if (what->capture != 0) {
        // The operation begins whenever the graph is launched, so nothing but MPIX_Wait_enqueue waits for it.
        layer().real.Grequest_complete(*request);
    }
    return MPI_SUCCESS;
}

/// Up to so many bytes a message travels as bytes of the host: a step copies it to pinned memory.
constexpr std::int64_t kByHost = 8 << 10;
/// Where places have no room, steps still copy up to so much; copy engines are faster for more.
constexpr std::int64_t kByStep = 64 << 10;

/// A message that lies in one run of bytes of the stream's device, which a step copies. Null for others.
std::shared_ptr<Enqueued> send_by_step(Call& call, const std::shared_ptr<StreamComm>& of, const void* const buffer,
                                       const std::int64_t count, const MPI_Datatype type, const int destination,
                                       const int tag, const MPI_Comm comm) {
    const Stage::Located located = Stage(call).locate(buffer, count, type);
    if (located.type == nullptr || located.mixed || located.info.kind != gpu::MemoryKind::device ||
        located.info.device != of->stream()->stream.device || !located.type->layout.is_contiguous(count)) {
        return nullptr;
    }
    const std::int64_t bytes = count * located.type->layout.size();
    auto made = std::make_shared<Enqueued>();
    made->waits = false;
    made->peer = destination;
    made->copy.source = static_cast<const std::byte*>(buffer) + located.type->layout.true_begin();
    made->copy.bytes = static_cast<std::size_t>(bytes);
    // Between graphs GPUs may pass it on without the CPU, and outside of them before the CPU hears of it.
    const bool repeats = of->capture() != 0, early = !repeats && !of->has_graphs();
    if (bytes > kByHost || ((repeats || early) && bytes > 0)) {
        if (const auto placed = of->take_place(destination, made->copy.bytes)) {
            made->copy.target = placed->place;
            made->message = placed->message;
            made->at_once = early;
            made->start = [of = made.get(), repeats, destination, tag, comm](MPI_Request* const begun) {
                transport::OutgoingMessage& message = *of->message;
                if (!of->at_once) {
                    message.offer_place(repeats);
                }
                return layer().real.Isend(message.rts(), static_cast<int>(message.rts_length()), MPI_BYTE, destination,
                                          tag, comm, begun);
            };
            call.account(report::Path::copied, bytes);
            return made;
        }
    }
    if (bytes > kByStep) {
        return nullptr;
    }
    made->block = of->make_block(bytes);
    made->copy.target = made->block.data();
    made->start = [data = made->block.data(), bytes, destination, tag, comm](MPI_Request* const begun) {
        return layer().real.Isend(data, static_cast<int>(bytes), MPI_BYTE, destination, tag, comm, begun);
    };
    call.account(report::Path::staged, bytes);
    return made;
}

template <class Count>
std::shared_ptr<Enqueued> send(Call& call, const std::shared_ptr<StreamComm>& of, const void* const buffer,
                               const Count count, const std::shared_ptr<const HeldType>& type, const int destination,
                               const int tag, const MPI_Comm comm) {
    if (destination != MPI_PROC_NULL) {
        MPI_Count size = 0;
        layer().real.Type_size_x(type->get(), &size);
        if (const auto bytes = static_cast<std::size_t>(count * size); transport::is_rts_length(bytes)) {
            layer().node_peers.sent_plain(comm, destination, bytes);
        }
        if (auto made =
                send_by_step(call, of, buffer, static_cast<std::int64_t>(count), type->get(), destination, tag, comm)) {
            return made;
        }
    }
    Argument<Count> sent{const_cast<void*>(buffer), count, type->get()};
    const auto what = operation(call, of, false, [&](Stage& stage) {
        if (destination != MPI_PROC_NULL) {
            sent = stage.buffer(Access::in, buffer, count, type->get());
        }
    });
    what->peer = destination;
    what->start = [=](MPI_Request* const begun) {
        static_cast<void>(type);
        return call_native<Count, Function::Isend, Function::Isend_c>(sent.address, sent.count, sent.type, destination,
                                                                      tag, comm, begun);
    };
    return what;
}

template <class Count>
std::shared_ptr<Enqueued> receive(Call& call, const std::shared_ptr<StreamComm>& of, void* const buffer,
                                  const Count count, const std::shared_ptr<const HeldType>& type, const int source,
                                  const int tag, const MPI_Comm comm) {
    const auto elements = static_cast<std::int64_t>(count);
    const Stage::Located located =
        source == MPI_PROC_NULL ? Stage::Located{} : Stage(call).locate(buffer, elements, type->get());
    std::shared_ptr<Enqueued> what;
    if (source == MPI_PROC_NULL || (!located.served && !of->any_places())) {
        // The MPI gets the program's memory: no message from a place comes for it.
        what = std::make_shared<Enqueued>();
        what->start = [=](MPI_Request* const begun) {
            return call_native<Count, Function::Irecv, Function::Irecv_c>(buffer, count, type->get(), source, tag, comm,
                                                                          begun);
        };
    } else {
        Landing landing;
        landing.user = static_cast<std::byte*>(buffer);
        landing.count = elements;
        landing.type = located.type;
        landing.capacity = located.type != nullptr ? elements * located.type->layout.size() : 0;
        landing.room = Landing::room_for(landing.capacity);
        if (located.served) {
            const bool is_near = located.info.kind == gpu::MemoryKind::device &&
                                 located.info.device == of->stream()->stream.device && !located.mixed;
            landing.to =
                is_near && located.type->layout.is_contiguous(elements) ? Landing::To::device : Landing::To::stage;
        }
        if (landing.to == Landing::To::stage) {
            what = operation(call, of, true, [&](Stage& stage) {
                stage.make_room(static_cast<std::size_t>(landing.room));
                static_cast<void>(stage.buffer(Access::out, buffer, count, type->get(), located));
            });
            landing.landed = what->stage->packed();
        } else {
            what = std::make_shared<Enqueued>();
            what->stores = what->at_once = true;
            landing.block = of->make_block(landing.room);
            landing.landed = landing.block.data();
            if (landing.to == Landing::To::device) {
                landing.user += located.type->layout.true_begin();
                call.account(report::Path::staged, landing.capacity);
            }
        }
        what->landing = std::move(landing);
        what->start = [into = &*what->landing, source, tag, comm](MPI_Request* const begun) {
            return into->post(source, tag, comm, begun);
        };
    }
    what->wild = source == MPI_ANY_SOURCE || tag == MPI_ANY_TAG;
    what->receives = true;
    what->peer = source;
    return what;
}

template <Function function, class Count, class... Last>
int send_enqueue(const void* buffer, Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
                 Last... request) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        if (of == nullptr) {
            return native<int(const void*, Count, MPI_Datatype, int, int, MPI_Comm, Last...)>(call)(
                buffer, count, type, destination, tag, comm, request...);
        }
        check_message(call, count, type, destination, tag, comm, false);
        MPI_Request* given = nullptr;
        ((given = request), ...);
        return queue(of, send(call, of, buffer, count, held(type), destination, tag, comm), given);
    });
}

template <Function function, class Count>
int recv_enqueue(void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status* status) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        if (of == nullptr) {
            return native<int(void*, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Status*)>(call)(
                buffer, count, type, source, tag, comm, status);
        }
        check_message(call, count, type, source, tag, comm, true);
        const auto what = receive(call, of, buffer, count, held(type), source, tag, comm);
        what->told = status;
        return queue(of, what, nullptr);
    });
}

template <Function function, class Count>
int irecv_enqueue(void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                  MPI_Request* request) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        if (of == nullptr) {
            return native<int(void*, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)>(call)(
                buffer, count, type, source, tag, comm, request);
        }
        check_message(call, count, type, source, tag, comm, true);
        return queue(of, receive(call, of, buffer, count, held(type), source, tag, comm), request);
    });
}

/// MPI_Send_init and MPI_Recv_init, which tell on a communicator with a stream what MPIX_Start_enqueue begins.
template <Function function, bool sends, class Type = typename NativeMember<function>::Type>
struct InitInStream {
    static void serve() {}  // this ABI has no such function
};
template <Function function, bool sends, class Buffer, class Count>
struct InitInStream<function, sends, int (*)(Buffer, Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)> {
    using Type = typename NativeMember<function>::Type;
    static inline Type plain = nullptr;

    static void serve() {
        plain = entry_of<Type>(function);
        loader::set_slot(function, reinterpret_cast<void*>(&enter), reinterpret_cast<void*>(&enter));
    }
    static int enter(Buffer buffer, Count count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                     MPI_Request* request) {
        const int error = plain(buffer, count, type, peer, tag, comm, request);
        const std::shared_ptr<StreamComm> of = StreamComms::instance().find(comm);
        if (error == MPI_SUCCESS && of != nullptr) {
            StreamComms::instance().made(*request, of, [=, type = held(type)](Call& start) {
                if constexpr (sends) {
                    return send(start, of, buffer, count, type, peer, tag, comm);
                } else {
                    return receive(start, of, buffer, count, type, peer, tag, comm);
                }
            });
        }
        return error;
    }

  private:
    template <class Pointer>
    static Pointer entry_of(const Function of) noexcept {
        return reinterpret_cast<Pointer>(loader::slot_of(of));
    }
};

/// Serves what ends or copies a communicator, once one has a stream.
void serve_objects() {
    static std::once_flag once;
    std::call_once(once, [] {
        InitInStream<Function::Send_init, true>::serve();
        InitInStream<Function::Send_init_c, true>::serve();
        InitInStream<Function::Recv_init, false>::serve();
        InitInStream<Function::Recv_init_c, false>::serve();
    });
    using Type = NamedObject::Type;
    for (const loader::Service& each : {
             AWAKEN_SERVE(Comm_free, FreeObject<FreeStreamComm, Type::communicator>),
             AWAKEN_SERVE(Comm_disconnect, FreeObject<FreeStreamComm, Type::communicator>),
             AWAKEN_SERVE(Comm_dup, MakeObject<CopyStreamComm, Type::communicator, 0, Type::communicator, 1, kNoHints>),
             AWAKEN_SERVE(Comm_dup_with_info,
                          MakeObject<CopyStreamComm, Type::communicator, 0, Type::communicator, 2, 1>),
             AWAKEN_SERVE(Op_free, FreeOp),
         }) {
        if (each.entry != nullptr) {
            loader::set_slot(each.function, each.entry, each.entry);
        }
    }
}

// ---- completion -----------------------------------------------------------------------------------------------------

/// The streams of the requests wait for them. All must be ours, or none.
int wait_enqueue(Call& call, const int count, MPI_Request* const requests, MPI_Status* const statuses,
                 const bool has_statuses) {
    StreamComms& all = StreamComms::instance();
    std::vector<StreamComms::Known> known(static_cast<std::size_t>(std::max(count, 0)));
    for (int i = 0; i < count; ++i) {
        if (requests[i] != MPI_REQUEST_NULL) {
            known[static_cast<std::size_t>(i)] = all.known(requests[i], call.name());
        } else if (has_statuses) {
            set_empty(statuses[i]);
        }
    }
    for (std::size_t first = 0; first < known.size(); ++first) {
        const std::shared_ptr<StreamComm> of = known[first].of;
        if (of == nullptr) {
            continue;  // null, or done with an earlier one
        }
        on(call, of->communicator());
        Operations together;
        for (std::size_t i = first; i < known.size(); ++i) {
            if (known[i].of == of && known[i].operation != nullptr) {
                together.push_back(known[i].operation);
            }
        }
        of->require_same_capture(together);
        for (std::size_t i = first; i < known.size(); ++i) {
            if (known[i].of != of) {
                continue;
            }
            MPI_Status* const status = has_statuses ? &statuses[i] : MPI_STATUS_IGNORE;
            if (known[i].operation == nullptr) {
                if (status != MPI_STATUS_IGNORE) {
                    set_empty(*status);  // persistent, and not started
                }
            } else {
                if (!known[i].operation->persistent) {
                    all.forget(requests[i]);
                }
                of->take_back(*known[i].operation, status);
            }
            known[i].of = nullptr;
        }
        if (!together.empty()) {
            of->wait(together);
        }
    }
    return MPI_SUCCESS;
}

/// True when the request is the MPI's own, of its own stream API.
bool is_native(const Call& call, const MPI_Request request) {
    return layer().stream_work.load(std::memory_order_acquire) == nullptr && request != MPI_REQUEST_NULL &&
           layer().binding.symbol(call.name()) != nullptr;
}

int wait_enqueue(MPI_Request* request, MPI_Status* status) {
    return served<Function::MPIX_Wait_enqueue>([&](Call& call) {
        if (is_native(call, *request)) {
            return native<int(MPI_Request*, MPI_Status*)>(call)(request, status);
        }
        return wait_enqueue(call, 1, request, status, status != MPI_STATUS_IGNORE);
    });
}

int waitall_enqueue(int count, MPI_Request* requests, MPI_Status* statuses) {
    return served<Function::MPIX_Waitall_enqueue>([&](Call& call) {
        if (count > 0 && is_native(call, requests[0])) {
            return native<int(int, MPI_Request*, MPI_Status*)>(call)(count, requests, statuses);
        }
        return wait_enqueue(call, count, requests, statuses, statuses != MPI_STATUSES_IGNORE);
    });
}

int start_enqueue(Call& call, const int count, MPI_Request* const requests) {
    StreamComms& all = StreamComms::instance();
    std::shared_ptr<StreamComm> of;
    Operations together;
    for (int i = 0; i < count; ++i) {
        const StreamComms::Known known = all.known(requests[i], call.name());
        if (known.again == nullptr) {
            refuse(call, MPI_ERR_REQUEST, "the request is not persistent", "pass one of MPI_Send_init and its like");
        }
        if (of != nullptr && known.of != of) {
            refuse(call, MPI_ERR_REQUEST, "the requests belong to several communicators",
                   "start the requests of each communicator in a call of their own");
        }
        of = known.of;
        std::shared_ptr<Enqueued> what = known.again(call);
        what->persistent = true;
        together.push_back(std::move(what));
    }
    if (of != nullptr) {
        on(call, of->communicator());
        of->enqueue(together, false);
        for (int i = 0; i < count; ++i) {
            all.started(requests[i], together[static_cast<std::size_t>(i)]);
        }
    }
    return MPI_SUCCESS;
}

int start_enqueue(MPI_Request* request) {
    return served<Function::MPIX_Start_enqueue>([&](Call& call) { return start_enqueue(call, 1, request); });
}

int startall_enqueue(int count, MPI_Request* requests) {
    return served<Function::MPIX_Startall_enqueue>([&](Call& call) { return start_enqueue(call, count, requests); });
}

// ---- collectives ----------------------------------------------------------------------------------------------------

/// Where a collective's memory lies for the MPI. A part that it reads and writes is both.
Access written(const void* const send) noexcept {
    return send == MPI_IN_PLACE ? Access::inout : Access::out;
}

/// The members exchange what they have, and the layer's thread folds it.
void fold_in_rank_order(Call& call, Enqueued& what, RankOrder::Arguments arguments) {
    const auto order = std::make_shared<RankOrder>(call, std::move(arguments));
    order->prepare();
    what.start = [order](MPI_Request* const begun) { return order->begin(begun); };
    what.finish = [order] { order->fold(); };
}

template <Function function, class Count>
int allreduce_enqueue(const void* send, void* receive, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        if (of == nullptr) {
            return native<int(const void*, void*, Count, MPI_Datatype, MPI_Op, MPI_Comm)>(call)(send, receive, count,
                                                                                                type, op, comm);
        }
        check_type(call, count, type, has_large<Function::Iallreduce_c>());
        const bool in_rank_order = folds_in_rank_order(call, comm);
        if (!in_rank_order &&
            queue_by_library(call, *of, {coll::Kind::allreduce, {send, count, type}, {receive, count, type}, op})) {
            return int{MPI_SUCCESS};
        }
        const auto kept = held(type);
        const auto kept_op = std::make_shared<const HeldOp>(op);
        const void* from = send;
        void* to = receive;
        const auto what = operation(call, of, true, [&](Stage& stage) {
            if (send != MPI_IN_PLACE) {
                from = stage.buffer(Access::in, send, count, kept->get(), -1, Packing::mirror).address;
            }
            to = stage.buffer(written(send), receive, count, kept->get(), -1, Packing::mirror).address;
        });
        if (in_rank_order) {
            fold_in_rank_order(call, *what,
                               {coll::Kind::allreduce,
                                send == MPI_IN_PLACE ? to : from,
                                to,
                                {static_cast<std::int64_t>(count)},
                                type,
                                op,
                                0,
                                comm});
        } else {
            what->start = [=](MPI_Request* const begun) {
                return call_native<Count, Function::Iallreduce, Function::Iallreduce_c>(from, to, count, kept->get(),
                                                                                        kept_op->get(), comm, begun);
            };
        }
        return queue(of, what, nullptr);
    });
}

template <Function function, class Count>
int bcast_enqueue(void* buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        check_type(call, count, type, has_large<Function::Ibcast_c>());
        check_root(call, root, comm);
        const StreamCollective::Buffer whole{buffer, count, type};
        if (queue_by_library(call, *of,
                             {.kind = coll::Kind::broadcast, .send = whole, .receive = whole, .root = root})) {
            return int{MPI_SUCCESS};
        }
        int rank = 0;
        layer().real.Comm_rank(comm, &rank);
        const auto kept = held(type);
        Argument<Count> all{buffer, count, kept->get()};
        const auto what = operation(call, of, rank != root, [&](Stage& stage) {
            all = stage.buffer(rank == root ? Access::in : Access::out, buffer, count, kept->get());
        });
        what->start = [=](MPI_Request* const begun) {
            static_cast<void>(kept);
            return call_native<Count, Function::Ibcast, Function::Ibcast_c>(all.address, all.count, all.type, root,
                                                                            comm, begun);
        };
        return queue(of, what, nullptr);
    });
}

/// Allgather and alltoall. `all_sent`: the send buffer has a part for each rank.
template <Function function, Function plain, Function large, bool all_sent, class Count>
int exchange_enqueue(const void* send, Count send_count, MPI_Datatype send_type, void* receive, Count receive_count,
                     MPI_Datatype receive_type, MPI_Comm comm) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        const bool in_place = send == MPI_IN_PLACE;
        if (!in_place) {
            check_type(call, send_count, send_type, has_large<large>());
        }
        check_type(call, receive_count, receive_type, has_large<large>());
        if (queue_by_library(call, *of,
                             {all_sent ? coll::Kind::alltoall : coll::Kind::allgather,
                              {send, send_count, send_type},
                              {receive, receive_count, receive_type}})) {
            return int{MPI_SUCCESS};
        }
        int size = 0;
        layer().real.Comm_size(comm, &size);
        const auto out_type = held(in_place ? receive_type : send_type), in_type = held(receive_type);
        Argument<Count> out{const_cast<void*>(send), send_count, out_type->get()};
        Argument<Count> in{receive, receive_count, in_type->get()};
        const auto what = operation(call, of, true, [&](Stage& stage) {
            if (!in_place) {
                out = stage.buffer(Access::in, send, send_count, out_type->get(),
                                   static_cast<std::int64_t>(send_count) * (all_sent ? size : 1));
            }
            in = stage.buffer(written(send), receive, receive_count, in_type->get(),
                              static_cast<std::int64_t>(receive_count) * size);
        });
        what->start = [=](MPI_Request* const begun) {
            static_cast<void>(out_type), static_cast<void>(in_type);
            return call_native<Count, plain, large>(static_cast<const void*>(out.address), out.count, out.type,
                                                    in.address, in.count, in.type, comm, begun);
        };
        return queue(of, what, nullptr);
    });
}

template <Function function, class Count>
int reduce_scatter_block_enqueue(const void* send, void* receive, Count count, MPI_Datatype type, MPI_Op op,
                                 MPI_Comm comm) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        check_type(call, count, type, has_large<Function::Ireduce_scatter_block_c>());
        const bool in_rank_order = folds_in_rank_order(call, comm);
        if (!in_rank_order &&
            queue_by_library(call, *of,
                             {coll::Kind::reduce_scatter, {send, count, type}, {receive, count, type}, op})) {
            return int{MPI_SUCCESS};
        }
        int size = 0;
        layer().real.Comm_size(comm, &size);
        const auto kept = held(type);
        const auto kept_op = std::make_shared<const HeldOp>(op);
        const auto own = static_cast<std::int64_t>(count), all = own * size;
        const void* from = send;
        void* to = receive;
        const auto what = operation(call, of, true, [&](Stage& stage) {
            if (send != MPI_IN_PLACE) {
                from = stage.buffer(Access::in, send, count, kept->get(), all, Packing::mirror).address;
                to = stage.buffer(Access::out, receive, count, kept->get(), -1, Packing::mirror).address;
            } else {
                to = stage.buffer(Access::inout, receive, count, kept->get(), all, Packing::mirror, own).address;
            }
        });
        if (in_rank_order) {
            fold_in_rank_order(call, *what,
                               {coll::Kind::reduce_scatter, send == MPI_IN_PLACE ? to : from, to,
                                std::vector<std::int64_t>(static_cast<std::size_t>(size), own), type, op, 0, comm});
        } else {
            what->start = [=](MPI_Request* const begun) {
                return call_native<Count, Function::Ireduce_scatter_block, Function::Ireduce_scatter_block_c>(
                    from, to, count, kept->get(), kept_op->get(), comm, begun);
            };
        }
        return queue(of, what, nullptr);
    });
}

int barrier_enqueue(MPI_Comm comm) {
    return served<Function::MPIX_Barrier_enqueue>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        if (queue_by_library(call, *of, {})) {
            return int{MPI_SUCCESS};
        }
        const auto what = operation(call, of, false, [](Stage&) {});
        what->start = [=](MPI_Request* const begun) { return layer().real.Ibarrier(comm, begun); };
        return queue(of, what, nullptr);
    });
}

/// The arrays of one side of an all-to-all along edges, for as long as the operation lasts.
struct Edges {
    template <class Count>
    Edges(const Count* const given_counts, const MPI_Aint* const given_offsets, const MPI_Datatype* const given_types,
          const int edges)
        : offsets(given_offsets, given_offsets + edges) {
        for (int i = 0; i < edges; ++i) {
            counts.push_back(static_cast<int>(given_counts[i]));
            types.push_back(all.hold(given_types[i]));
        }
    }
    std::vector<int> counts;
    std::vector<MPI_Aint> offsets;
    HeldTypes all;
    std::vector<MPI_Datatype> types;
};

std::pair<int, int> edges_of(const Call& call, const MPI_Comm comm) {
    const Native& real = layer().real;
    int kind = MPI_UNDEFINED, in = 0, out = 0, weighted = 0;
    real.Topo_test(comm, &kind);
    if (kind == MPI_DIST_GRAPH) {
        real.Dist_graph_neighbors_count(comm, &in, &out, &weighted);
    } else if (kind == MPI_CART) {
        int dimensions = 0;
        real.Cartdim_get(comm, &dimensions);
        in = out = 2 * dimensions;
    } else if (kind == MPI_GRAPH) {
        int rank = 0;
        real.Comm_rank(comm, &rank);
        real.Graph_neighbors_count(comm, rank, &in);
        out = in;
    } else {
        refuse(call, MPI_ERR_TOPOLOGY, "the communicator has no topology",
               "make it of one that has, by MPIX_Stream_comm_create");
    }
    return {in, out};
}

template <Function function, class Count>
int neighbor_alltoallw_enqueue(const void* send, const Count* send_counts, const MPI_Aint* send_offsets,
                               const MPI_Datatype* send_types, void* receive, const Count* receive_counts,
                               const MPI_Aint* receive_offsets, const MPI_Datatype* receive_types, MPI_Comm comm) {
    return served<function>([&](Call& call) {
        const std::shared_ptr<StreamComm> of = stream_comm(call, comm);
        const auto [in, out] = edges_of(call, comm);
        for (int i = 0; i < out; ++i) {
            check_type(call, send_counts[i], send_types[i], false);
        }
        for (int i = 0; i < in; ++i) {
            check_type(call, receive_counts[i], receive_types[i], false);
        }
        const auto to = std::make_shared<Edges>(send_counts, send_offsets, send_types, out);
        const auto from = std::make_shared<Edges>(receive_counts, receive_offsets, receive_types, in);
        TypedVectorArgument<MPI_Aint> sent{const_cast<void*>(send), to->offsets.data(), to->types.data()};
        TypedVectorArgument<MPI_Aint> received{receive, from->offsets.data(), from->types.data()};
        const auto what = operation(call, of, true, [&, out = out, in = in](Stage& stage) {
            sent = stage.typed_blocks(Access::in, send, to->counts.data(), to->offsets.data(), to->types.data(), out);
            received = stage.typed_blocks(Access::out, receive, from->counts.data(), from->offsets.data(),
                                          from->types.data(), in);
        });
        what->start = [=](MPI_Request* const begun) {
            return layer().real.Ineighbor_alltoallw(sent.address, to->counts.data(), sent.displacements, sent.types,
                                                    received.address, from->counts.data(), received.displacements,
                                                    received.types, comm, begun);
        };
        return queue(of, what, nullptr);
    });
}

template <class Type>
loader::Service service(const Function function, Type* const entry) {
    return {function, reinterpret_cast<void*>(entry)};
}

}  // namespace

Services stream_services() {
    using F = Function;
    return {
        service(F::MPIX_Info_set_hex, &info_set_hex),
        service(F::MPIX_Stream_create, &stream_create),
        service(F::MPIX_Stream_free, &stream_free),
        service(F::MPIX_Stream_comm_create, &stream_comm_create),
        service(F::MPIX_Comm_get_stream, &comm_get_stream),
        service(F::MPIX_Start_progress_thread, &progress_thread<F::MPIX_Start_progress_thread>),
        service(F::MPIX_Stop_progress_thread, &progress_thread<F::MPIX_Stop_progress_thread>),
        service(F::MPIX_Send_enqueue, &send_enqueue<F::MPIX_Send_enqueue, int>),
        service(F::MPIX_Send_enqueue_c, &send_enqueue<F::MPIX_Send_enqueue_c, MPI_Count>),
        service(F::MPIX_Recv_enqueue, &recv_enqueue<F::MPIX_Recv_enqueue, int>),
        service(F::MPIX_Recv_enqueue_c, &recv_enqueue<F::MPIX_Recv_enqueue_c, MPI_Count>),
        service(F::MPIX_Isend_enqueue, &send_enqueue<F::MPIX_Isend_enqueue, int, MPI_Request*>),
        service(F::MPIX_Isend_enqueue_c, &send_enqueue<F::MPIX_Isend_enqueue_c, MPI_Count, MPI_Request*>),
        service(F::MPIX_Irecv_enqueue, &irecv_enqueue<F::MPIX_Irecv_enqueue, int>),
        service(F::MPIX_Irecv_enqueue_c, &irecv_enqueue<F::MPIX_Irecv_enqueue_c, MPI_Count>),
        service(F::MPIX_Wait_enqueue, static_cast<int (*)(MPI_Request*, MPI_Status*)>(&wait_enqueue)),
        service(F::MPIX_Waitall_enqueue, &waitall_enqueue),
        service(F::MPIX_Start_enqueue, static_cast<int (*)(MPI_Request*)>(&start_enqueue)),
        service(F::MPIX_Startall_enqueue, &startall_enqueue),
        service(F::MPIX_Allreduce_enqueue, &allreduce_enqueue<F::MPIX_Allreduce_enqueue, int>),
        service(F::MPIX_Allreduce_enqueue_c, &allreduce_enqueue<F::MPIX_Allreduce_enqueue_c, MPI_Count>),
        service(F::MPIX_Bcast_enqueue, &bcast_enqueue<F::MPIX_Bcast_enqueue, int>),
        service(F::MPIX_Bcast_enqueue_c, &bcast_enqueue<F::MPIX_Bcast_enqueue_c, MPI_Count>),
        service(F::MPIX_Allgather_enqueue,
                &exchange_enqueue<F::MPIX_Allgather_enqueue, F::Iallgather, F::Iallgather_c, false, int>),
        service(F::MPIX_Allgather_enqueue_c,
                &exchange_enqueue<F::MPIX_Allgather_enqueue_c, F::Iallgather, F::Iallgather_c, false, MPI_Count>),
        service(F::MPIX_Reduce_scatter_block_enqueue,
                &reduce_scatter_block_enqueue<F::MPIX_Reduce_scatter_block_enqueue, int>),
        service(F::MPIX_Reduce_scatter_block_enqueue_c,
                &reduce_scatter_block_enqueue<F::MPIX_Reduce_scatter_block_enqueue_c, MPI_Count>),
        service(F::MPIX_Alltoall_enqueue,
                &exchange_enqueue<F::MPIX_Alltoall_enqueue, F::Ialltoall, F::Ialltoall_c, true, int>),
        service(F::MPIX_Alltoall_enqueue_c,
                &exchange_enqueue<F::MPIX_Alltoall_enqueue_c, F::Ialltoall, F::Ialltoall_c, true, MPI_Count>),
        service(F::MPIX_Neighbor_alltoallw_enqueue,
                &neighbor_alltoallw_enqueue<F::MPIX_Neighbor_alltoallw_enqueue, int>),
        service(F::MPIX_Neighbor_alltoallw_enqueue_c,
                &neighbor_alltoallw_enqueue<F::MPIX_Neighbor_alltoallw_enqueue_c, MPI_Count>),
        service(F::MPIX_Barrier_enqueue, &barrier_enqueue),
    };
}

}  // namespace awaken::AWAKEN_ABI
