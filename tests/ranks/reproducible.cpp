// SPDX-License-Identifier: Apache-2.0
// Reductions that fold in the order of the ranks (AWAKEN_REPRODUCIBLE), at random: the bits are those of a fold on one
// CPU, whatever the call, its size, the memory and the order of arrival are.
//
//   reproducible [--gpu=KIND] [--first=SEED] [--count=N] [--key | --enqueue | --info]
//
// Prints `ok N draws`, or `FAIL SEED: ...` for each draw that differs; the exit status is 1 then. With --key the
// communicator asks for it (info key "awaken_reproducible"). With --enqueue the reductions are queued in a stream.
// --info checks what becomes of wrong keys.
#include <dlfcn.h>

#include <complex>
#include <optional>

#include "random.h"

using namespace ranks;

namespace {

using Bytes = std::vector<std::byte>;

[[noreturn]] void stop(const std::string& why) {
    std::fprintf(stderr, "reproducible: %s\n", why.c_str());
    MPI_Abort(MPI_COMM_WORLD, 125);
    std::abort();
}

void check(const int error, const char* const what) {
    if (error != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING] = {};
        int length = 0;
        MPI_Error_string(error, text, &length);
        stop(std::string(what) + ": " + text);
    }
}
#undef OK
#define OK(...) check(__VA_ARGS__, #__VA_ARGS__)

// ---- types and operations -------------------------------------------------------------------------------------------

/// Neither commutative nor associative, and defined for any part: left / 2 + right.
template <class T>
void half_and(void* left, void* inout, int* count, MPI_Datatype*) {
    const auto* const from = static_cast<const T*>(left);
    auto* const to = static_cast<T*>(inout);
    for (int i = 0; i < *count; ++i) {
        to[i] = from[i] * static_cast<T>(0.5F) + to[i];
    }
}

enum class Operation { sum, product, user };

struct Type {
    std::string name;
    MPI_Datatype type;
    std::size_t bytes;
    MPI_User_function* user;
    void (*make)(Random& random, std::byte* at);
    void (*fold)(Operation operation, const std::byte* left, std::byte* right);
};

/// Of all magnitudes between 2^-20 and 2^20 at random, so that sums depend on the order.
template <class T>
T number(Random& random) {
    const int exponent = random.below(41) - 20;
    return std::ldexp(static_cast<T>(static_cast<std::int64_t>(random.bits() >> 11)) / static_cast<T>(1LL << 53) -
                          static_cast<T>(0.5F),
                      exponent);
}

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};

template <class T>
Type type_of(const std::string& name, const MPI_Datatype type) {
    return {name,
            type,
            sizeof(T),
            &half_and<T>,
            [](Random& random, std::byte* const at) {
                T value;
                if constexpr (IsComplex<T>::value) {
                    using Part = typename T::value_type;
                    const Part real = number<Part>(random);
                    value = T(real, number<Part>(random));
                } else {
                    value = number<T>(random);
                }
                std::memcpy(at, &value, sizeof value);
            },
            [](const Operation operation, const std::byte* const left, std::byte* const right) {
                T a, b;
                std::memcpy(&a, left, sizeof a);
                std::memcpy(&b, right, sizeof b);
                if (operation == Operation::sum) {
                    b = a + b;
                } else if (operation == Operation::user) {
                    int one = 1;
                    half_and<T>(&a, &b, &one, nullptr);
                } else if constexpr (IsComplex<T>::value) {
                    // Without the standard library's care for infinities.
                    b = T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
                } else {
                    b = a * b;
                }
                std::memcpy(right, &b, sizeof b);
            }};
}

/// right[i] = left[i] op right[i]
void fold(const Type& type, const Operation operation, const Bytes& left, Bytes& right) {
    for (std::size_t at = 0; at < right.size(); at += type.bytes) {
        type.fold(operation, left.data() + at, right.data() + at);
    }
}

// ---- calls ----------------------------------------------------------------------------------------------------------

enum class Call { reduce, allreduce, reduce_scatter, reduce_scatter_block, scan, exscan };
constexpr const char* kCalls[] = {"reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"};
enum class Form { blocking, nonblocking, persistent, queued };
constexpr const char* kForms[] = {"blocking", "nonblocking", "persistent", "queued"};

/// One reduction, as all ranks know it.
struct Draw {
    std::uint64_t seed;
    Call call;
    Form form;
    const Type* type;
    Operation operation;
    bool in_place;
    bool derived;  ///< elements of a user's operation have gaps
    int root;
    int rounds;               ///< how often a persistent one is started
    std::vector<int> counts;  ///< one; of a reduce_scatter by rank
    std::vector<int> arrival;
    [[nodiscard]] int total(const int size) const {
        if (call == Call::reduce_scatter) {
            int sum = 0;
            for (const int count : counts) {
                sum += count;
            }
            return sum;
        }
        return counts.front() * (call == Call::reduce_scatter_block ? size : 1);
    }
};

struct Queue {
    void* stream = nullptr;
    MPI_Comm comm = MPI_COMM_NULL;
    int (*allreduce)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) = nullptr;
    int (*scatter)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) = nullptr;
};

template <class Function>
void look_up(Function& function, const char* const name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    if (function == nullptr) {
        stop(std::string(name) + " is not there");
    }
}

class Draws {
  public:
    Draws(Gpu& gpu, const MPI_Comm comm, const bool queues) : _gpu(gpu), _comm(comm) {
        MPI_Comm_rank(comm, &_rank);
        MPI_Comm_size(comm, &_size);
        _types = {type_of<float>("float", MPI_FLOAT), type_of<double>("double", MPI_DOUBLE),
                  type_of<std::complex<float>>("complex float", MPI_C_FLOAT_COMPLEX),
                  type_of<std::complex<double>>("complex double", MPI_C_DOUBLE_COMPLEX)};
        if (queues) {
            open_queue();
        }
    }
    ~Draws() {
        if (_queue) {
            MPI_Comm_free(&_queue->comm);
            _gpu.destroy_stream(_queue->stream);
        }
    }
    Draws(const Draws&) = delete;
    Draws& operator=(const Draws&) = delete;

    /// Empty, or how the result differs.
    std::string run(const std::uint64_t seed) {
        const Draw draw = drawn(seed);
        std::vector<Bytes> inputs;
        for (int rank = 0; rank < _size; ++rank) {
            inputs.push_back(input_of(draw, rank));
        }
        const std::string where = std::string("MPI_") + kCalls[static_cast<int>(draw.call)] + ", " +
                                  kForms[static_cast<int>(draw.form)] + ", " + draw.type->name + ", operation " +
                                  std::to_string(static_cast<int>(draw.operation)) + ", " +
                                  std::to_string(draw.total(_size)) + " elements" +
                                  (draw.in_place ? ", in place" : "") + (draw.derived ? ", with gaps" : "");
        const std::string why = compare(draw, inputs);
        return why.empty() ? "" : where + ": " + why;
    }

  private:
    void open_queue() {
        _queue.emplace();
        int (*create)(MPI_Info, int*) = nullptr;
        int (*make)(MPI_Comm, int, MPI_Comm*) = nullptr;
        int (*free)(int*) = nullptr;
        int (*set_hex)(MPI_Info, const char*, const void*, int) = nullptr;
        look_up(create, "MPIX_Stream_create");
        look_up(make, "MPIX_Stream_comm_create");
        look_up(free, "MPIX_Stream_free");
        look_up(set_hex, "MPIX_Info_set_hex");
        look_up(_queue->allreduce, "MPIX_Allreduce_enqueue");
        look_up(_queue->scatter, "MPIX_Reduce_scatter_block_enqueue");
        _queue->stream = _gpu.make_stream(false);
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "type", _gpu.is_hip() ? "hipStream_t" : "cudaStream_t");
        OK(set_hex(info, "value", &_queue->stream, sizeof _queue->stream));
        int number = 0;
        OK(create(info, &number));
        MPI_Info_free(&info);
        OK(make(_comm, number, &_queue->comm));
        OK(free(&number));
    }

    [[nodiscard]] Draw drawn(const std::uint64_t seed) const {
        Random random(combine(seed, 0x5eed));
        Draw draw{};
        draw.seed = seed;
        draw.call = _queue ? (random.chance(50) ? Call::allreduce : Call::reduce_scatter_block)
                           : static_cast<Call>(random.below(6));
        draw.form = _queue ? Form::queued : static_cast<Form>(random.below(RANKS_HAVE_MPI4 != 0 ? 3 : 2));
        draw.type = &_types[static_cast<std::size_t>(random.below(static_cast<int>(_types.size())))];
        draw.operation = static_cast<Operation>(random.below(3));
        draw.in_place = random.chance(30);
        draw.derived = draw.operation == Operation::user && random.chance(40);
        draw.root = random.below(_size);
        draw.rounds = draw.form == Form::persistent ? 1 + random.below(3) : 1;
        const int size_class = random.below(100);
        const int most = size_class < 10   ? 1
                         : size_class < 60 ? 100
                         : size_class < 90 ? 4000
                         : size_class < 98 ? 60000
                                           : 700000;
        const int members = draw.call == Call::reduce_scatter ? _size : 1;
        const int parts = draw.call == Call::reduce_scatter || draw.call == Call::reduce_scatter_block ? _size : 1;
        for (int i = 0; i < members; ++i) {
            draw.counts.push_back(random.below(most / parts + 2));
        }
        for (int rank = 0; rank < _size; ++rank) {
            draw.arrival.insert(draw.arrival.begin() + random.below(rank + 1), rank);
        }
        return draw;
    }

    [[nodiscard]] Bytes input_of(const Draw& draw, const int rank) const {
        Random random(combine(draw.seed, static_cast<std::uint64_t>(rank) + 77));
        Bytes bytes(static_cast<std::size_t>(draw.total(_size)) * draw.type->bytes);
        for (std::size_t at = 0; at < bytes.size(); at += draw.type->bytes) {
            draw.type->make(random, bytes.data() + at);
        }
        return bytes;
    }

    /// What this rank is to get. Nothing: no result.
    [[nodiscard]] std::optional<Bytes> expected(const Draw& draw, std::vector<Bytes> inputs) const {
        int first = 0, count = draw.total(_size), last = _size - 1;
        switch (draw.call) {
            case Call::reduce:
                if (_rank != draw.root) {
                    return std::nullopt;
                }
                break;
            case Call::reduce_scatter:
                for (int rank = 0; rank < _rank; ++rank) {
                    first += draw.counts[static_cast<std::size_t>(rank)];
                }
                count = draw.counts[static_cast<std::size_t>(_rank)];
                break;
            case Call::reduce_scatter_block:
                first = _rank * draw.counts.front();
                count = draw.counts.front();
                break;
            case Call::scan:
                last = _rank;
                break;
            case Call::exscan:
                last = _rank - 1;
                break;
            case Call::allreduce:
                break;
        }
        if (last < 0) {
            return std::nullopt;
        }
        const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * draw.type->bytes);
        const auto length = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * draw.type->bytes);
        Bytes result(inputs.front().begin() + begin, inputs.front().begin() + begin + length);
        for (int rank = 1; rank <= last; ++rank) {
            const Bytes& all = inputs[static_cast<std::size_t>(rank)];
            Bytes next(all.begin() + begin, all.begin() + begin + length);
            fold(*draw.type, draw.operation, result, next);
            result = std::move(next);
        }
        return result;
    }

    /// Elements `stride` bytes apart, where they have gaps.
    static void spread(const Bytes& packed, std::byte* const to, const std::size_t bytes, const std::size_t stride) {
        for (std::size_t i = 0; i * bytes < packed.size(); ++i) {
            std::memcpy(to + i * stride, packed.data() + i * bytes, bytes);
        }
    }

    [[nodiscard]] Buffer buffer(Random& random, const std::size_t bytes) const {
        static constexpr Kind kKindsOfMemory[] = {Kind::host,    Kind::device, Kind::device,
                                                  Kind::managed, Kind::pinned, Kind::interior};
        const Kind kind = _gpu.present() ? kKindsOfMemory[random.below(6)] : Kind::host;
        return {_gpu, kind, std::max<std::size_t>(bytes, 1)};
    }

    std::string compare(const Draw& draw, const std::vector<Bytes>& inputs) {
        const Type& type = *draw.type;
        const std::size_t stride = type.bytes * (draw.derived ? 2 : 1);
        const auto total = static_cast<std::size_t>(draw.total(_size));
        // In half of the draws all ranks pass device memory, which the kernels take.
        Random shared(combine(draw.seed, 0xd1ce));
        const bool all_device = _gpu.present() && shared.chance(50);
        Random own(combine(draw.seed, 0xabc + static_cast<std::uint64_t>(_rank)));
        const auto make = [&](const std::size_t bytes) {
            return all_device ? Buffer(_gpu, Kind::device, std::max<std::size_t>(bytes, 1)) : buffer(own, bytes);
        };
        const bool in_place = draw.in_place && (draw.call != Call::reduce || _rank == draw.root);
        Buffer sent = make(total * stride), received = make(total * stride);
        const Bytes untouched(total * stride, std::byte{0x5a});
        MPI_Datatype datatype = type.type;
        if (draw.derived) {
            OK(MPI_Type_create_resized(type.type, 0, static_cast<MPI_Aint>(stride), &datatype));
            OK(MPI_Type_commit(&datatype));
        }
        MPI_Op op = draw.operation == Operation::sum ? MPI_SUM : MPI_PROD;
        if (draw.operation == Operation::user) {
            // With gaps, the operation sees elements of twice the length.
            OK(MPI_Op_create(draw.derived ? &with_gaps : type.user, 0, &op));
            current = &type;
        }
        Bytes input = untouched;
        spread(inputs[static_cast<std::size_t>(_rank)], input.data(), type.bytes, stride);
        const auto refill = [&] {
            sent.write(input.data(), input.size());
            received.write(in_place ? input.data() : untouched.data(), input.size());
        };
        refill();
        const std::optional<Bytes> result = expected(draw, inputs);
        Bytes wanted = in_place ? input : untouched;
        if (result) {
            // In place, a scattered result comes to the beginning, too.
            spread(*result, wanted.data(), type.bytes, stride);
        }
        const std::size_t own_bytes = result ? result->size() / type.bytes * stride : wanted.size();
        std::string why;
        const auto look = [&] {
            const Bytes got = received.read();
            // What lies behind a scattered result in place is the program's input, which MPI may overwrite.
            const bool all_counts = !(in_place && total * stride != own_bytes);
            const std::size_t compared = all_counts ? wanted.size() : own_bytes;
            for (std::size_t at = 0; at < compared && why.empty(); ++at) {
                if (got[at] != wanted[at]) {
                    why = "byte " + std::to_string(at) + " of " + std::to_string(compared) + " differs";
                }
            }
            why += sent.guard_damage() + received.guard_damage();
        };
        arrive(draw);
        call(draw, in_place ? MPI_IN_PLACE : sent.data(), received.data(), datatype, op, [&](const bool again) {
            look();
            if (again) {
                refill();
            }
        });
        return why;
    }

    /// Ranks come to the call in the order that is drawn.
    void arrive(const Draw& draw) const {
        const auto place = std::find(draw.arrival.begin(), draw.arrival.end(), _rank) - draw.arrival.begin();
        if (place > 0) {
            MPI_Recv(nullptr, 0, MPI_BYTE, draw.arrival[static_cast<std::size_t>(place - 1)], 3, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        }
        if (place + 1 < _size) {
            MPI_Send(nullptr, 0, MPI_BYTE, draw.arrival[static_cast<std::size_t>(place + 1)], 3, MPI_COMM_WORLD);
        }
    }

    /// Frees the operation and the type as early as MPI allows it.
    template <class Look>
    void call(const Draw& draw, const void* const sent, void* const received, MPI_Datatype type, MPI_Op op,
              const Look& look) const {
        const int* const counts = draw.counts.data();
        const int count = draw.counts.front();
        const auto free = [&] {
            if (draw.operation == Operation::user) {
                OK(MPI_Op_free(&op));
            }
            if (draw.derived) {
                OK(MPI_Type_free(&type));
            }
        };
        if (draw.form == Form::queued) {
            OK((draw.call == Call::allreduce ? _queue->allreduce : _queue->scatter)(sent, received, count, type, op,
                                                                                    _queue->comm));
            free();
            _gpu.finish_stream(_queue->stream);
            look(false);
            return;
        }
        if (draw.form == Form::blocking) {
            switch (draw.call) {
                case Call::reduce:
                    OK(MPI_Reduce(sent, received, count, type, op, draw.root, _comm));
                    break;
                case Call::allreduce:
                    OK(MPI_Allreduce(sent, received, count, type, op, _comm));
                    break;
                case Call::reduce_scatter:
                    OK(MPI_Reduce_scatter(sent, received, counts, type, op, _comm));
                    break;
                case Call::reduce_scatter_block:
                    OK(MPI_Reduce_scatter_block(sent, received, count, type, op, _comm));
                    break;
                case Call::scan:
                    OK(MPI_Scan(sent, received, count, type, op, _comm));
                    break;
                case Call::exscan:
                    OK(MPI_Exscan(sent, received, count, type, op, _comm));
                    break;
            }
            free();
            look(false);
            return;
        }
        MPI_Request request = MPI_REQUEST_NULL;
        begin(draw, sent, received, type, op, &request);
        free();
        for (int round = 0; round < draw.rounds; ++round) {
            if (draw.form == Form::persistent) {
                OK(MPI_Start(&request));
            }
            for (int done = 0; done == 0 && round % 2 == 0;) {
                OK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
            }
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            look(round + 1 < draw.rounds);
        }
        if (request != MPI_REQUEST_NULL) {
            OK(MPI_Request_free(&request));
        }
    }

    void begin(const Draw& draw, const void* const sent, void* const received, const MPI_Datatype type, const MPI_Op op,
               MPI_Request* const request) const {
        const int* const counts = draw.counts.data();
        const int count = draw.counts.front();
#if RANKS_HAVE_MPI4
        if (draw.form == Form::persistent) {
            switch (draw.call) {
                case Call::reduce:
                    OK(MPI_Reduce_init(sent, received, count, type, op, draw.root, _comm, MPI_INFO_NULL, request));
                    return;
                case Call::allreduce:
                    OK(MPI_Allreduce_init(sent, received, count, type, op, _comm, MPI_INFO_NULL, request));
                    return;
                case Call::reduce_scatter:
                    OK(MPI_Reduce_scatter_init(sent, received, counts, type, op, _comm, MPI_INFO_NULL, request));
                    return;
                case Call::reduce_scatter_block:
                    OK(MPI_Reduce_scatter_block_init(sent, received, count, type, op, _comm, MPI_INFO_NULL, request));
                    return;
                case Call::scan:
                    OK(MPI_Scan_init(sent, received, count, type, op, _comm, MPI_INFO_NULL, request));
                    return;
                case Call::exscan:
                    OK(MPI_Exscan_init(sent, received, count, type, op, _comm, MPI_INFO_NULL, request));
                    return;
            }
        }
#endif
        switch (draw.call) {
            case Call::reduce:
                OK(MPI_Ireduce(sent, received, count, type, op, draw.root, _comm, request));
                break;
            case Call::allreduce:
                OK(MPI_Iallreduce(sent, received, count, type, op, _comm, request));
                break;
            case Call::reduce_scatter:
                OK(MPI_Ireduce_scatter(sent, received, counts, type, op, _comm, request));
                break;
            case Call::reduce_scatter_block:
                OK(MPI_Ireduce_scatter_block(sent, received, count, type, op, _comm, request));
                break;
            case Call::scan:
                OK(MPI_Iscan(sent, received, count, type, op, _comm, request));
                break;
            case Call::exscan:
                OK(MPI_Iexscan(sent, received, count, type, op, _comm, request));
                break;
        }
    }

    static void with_gaps(void* left, void* inout, int* count, MPI_Datatype*) {
        for (int i = 0; i < *count; ++i) {
            const auto at = static_cast<std::size_t>(i) * current->bytes * 2;
            current->fold(Operation::user, static_cast<const std::byte*>(left) + at,
                          static_cast<std::byte*>(inout) + at);
        }
    }
    static inline const Type* current = nullptr;

    Gpu& _gpu;
    const MPI_Comm _comm;
    int _rank = 0, _size = 0;
    std::vector<Type> _types;
    std::optional<Queue> _queue;
};

// ---- the key --------------------------------------------------------------------------------------------------------

MPI_Comm with_key(const MPI_Comm comm, const char* const value, int& error) {
    MPI_Info info = MPI_INFO_NULL;
    if (value != nullptr) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "awaken_reproducible", value);
    }
    MPI_Comm made = MPI_COMM_NULL;
    error = MPI_Comm_dup_with_info(comm, info, &made);
    if (info != MPI_INFO_NULL) {
        MPI_Info_free(&info);
    }
    return made;
}

[[nodiscard]] bool has_key(const MPI_Comm comm) {
    MPI_Info info = MPI_INFO_NULL;
    OK(MPI_Comm_get_info(comm, &info));
    char value[8] = {};
    int found = 0;
    MPI_Info_get(info, "awaken_reproducible", sizeof value - 1, value, &found);
    MPI_Info_free(&info);
    return found != 0 && std::string(value) == "true";
}

int wrong_keys(const int rank) {
    int failed = 0;
    const auto expect = [&](const char* const what, const bool holds) {
        failed += holds ? 0 : 1;
        std::printf("%s %s\n", holds ? "ok" : "FAIL", what);
    };
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    const auto class_of = [](const int error) {
        int answer = MPI_SUCCESS;
        MPI_Error_class(error, &answer);
        return answer;
    };
    int error = MPI_SUCCESS;
    with_key(MPI_COMM_WORLD, rank == 0 ? "true" : nullptr, error);
    expect("a key on one rank", class_of(error) == MPI_ERR_INFO_VALUE);
    with_key(MPI_COMM_WORLD, rank == 0 ? "perhaps" : "true", error);
    expect("a wrong value", class_of(error) == MPI_ERR_INFO_VALUE);
    MPI_Comm asked = with_key(MPI_COMM_WORLD, "true", error);
    expect("the key is kept", error == MPI_SUCCESS && has_key(asked));
    MPI_Comm copy = MPI_COMM_NULL;
    OK(MPI_Comm_dup(asked, &copy));
    expect("a duplicate has it", has_key(copy));
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "awaken_reproducible", "false");
    OK(MPI_Comm_set_info(copy, info));
    MPI_Info_free(&info);
    expect("it can be taken back", !has_key(copy) && has_key(asked) && !has_key(MPI_COMM_WORLD));
    MPI_Comm_free(&copy);
    MPI_Comm_free(&asked);
    return failed;
}

}  // namespace

int main(int argc, char** argv) {
    std::string gpu_name = "none";
    std::uint64_t first = 1, count = 20;
    bool key = false, queues = false, info = false;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word.rfind("--gpu=", 0) == 0) {
            gpu_name = word.substr(6);
        } else if (word.rfind("--first=", 0) == 0) {
            first = std::stoull(word.substr(8));
        } else if (word.rfind("--count=", 0) == 0) {
            count = std::stoull(word.substr(8));
        } else if (word == "--key") {
            key = true;
        } else if (word == "--enqueue") {
            queues = true;
        } else if (word == "--info") {
            info = true;
        } else {
            std::fprintf(stderr, "unknown argument %s\n", word.c_str());
            return 125;
        }
    }
    int level = 0;
    MPI_Init_thread(&argc, &argv, queues ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    int rank = 0, size = 0, failed = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        std::printf("# ranks %d, GPU runtime %s\n", size, gpu_name.c_str());
    }
    if (info) {
        failed = wrong_keys(rank);
    } else {
        const std::unique_ptr<Gpu> gpu = Gpu::open(gpu_name);
        if (gpu->device_count() > 0) {
            gpu->use_device(rank % gpu->device_count());
        }
        MPI_Comm comm = MPI_COMM_WORLD;
        if (key) {
            int error = MPI_SUCCESS;
            MPI_Comm asked = with_key(MPI_COMM_WORLD, "true", error);
            OK(error);
            OK(MPI_Comm_dup(asked, &comm));
            OK(MPI_Comm_free(&asked));
        }
        {
            Draws draws(*gpu, comm, queues);
            for (std::uint64_t seed = first; seed < first + count; ++seed) {
                if (const std::string why = draws.run(seed); !why.empty()) {
                    ++failed;
                    std::printf("FAIL %llu on rank %d of %d: %s\n", static_cast<unsigned long long>(seed), rank, size,
                                why.c_str());
                }
            }
        }
        if (key) {
            MPI_Comm_free(&comm);
        }
        int all = 0;
        MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && all == 0) {
            std::printf("ok %llu draws\n", static_cast<unsigned long long>(count));
        }
    }
    MPI_Finalize();
    return failed == 0 ? 0 : 1;
}
