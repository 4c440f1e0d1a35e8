// SPDX-License-Identifier: Apache-2.0
#include "ccl/ccl.h"

#include <array>
#include <memory>
#include <mutex>

#include "ccl/product.h"
#include "gpu/dynamic_library.h"

namespace awaken::ccl {

// The binary interface, as the libraries' documentation gives it. Communicators are opaque pointers, results and
// enumerations are ints, and the identifier is passed by value.
//
// X(member, symbol, required, result, parameters...)
#define AWAKEN_CCL_FUNCTIONS(X)                                                                        \
    X(version, "ncclGetVersion", true, int, int*)                                                      \
    X(error_string, "ncclGetErrorString", true, const char*, int)                                      \
    X(last_error, "ncclGetLastError", false, const char*, void*)                                       \
    X(unique_id, "ncclGetUniqueId", true, int, UniqueId*)                                              \
    X(init_rank, "ncclCommInitRank", true, int, void**, int, UniqueId, int)                            \
    X(destroy, "ncclCommDestroy", true, int, void*)                                                    \
    X(abort, "ncclCommAbort", false, int, void*)                                                       \
    X(async_error, "ncclCommGetAsyncError", false, int, void*, int*)                                   \
    X(count, "ncclCommCount", true, int, const void*, int*)                                            \
    X(user_rank, "ncclCommUserRank", true, int, const void*, int*)                                     \
    X(group_start, "ncclGroupStart", true, int)                                                        \
    X(group_end, "ncclGroupEnd", true, int)                                                            \
    X(send, "ncclSend", false, int, const void*, std::size_t, int, int, void*, void*)                  \
    X(receive, "ncclRecv", false, int, void*, std::size_t, int, int, void*, void*)                     \
    X(all_reduce, "ncclAllReduce", true, int, const void*, void*, std::size_t, int, int, void*, void*) \
    X(reduce, "ncclReduce", true, int, const void*, void*, std::size_t, int, int, int, void*, void*)   \
    X(broadcast, "ncclBroadcast", false, int, const void*, void*, std::size_t, int, int, void*, void*) \
    X(all_gather, "ncclAllGather", true, int, const void*, void*, std::size_t, int, void*, void*)      \
    X(reduce_scatter, "ncclReduceScatter", true, int, const void*, void*, std::size_t, int, int, void*, void*)

struct Functions {
    AWAKEN_CCL_FUNCTIONS(AWAKEN_DECLARE_FUNCTION)
};

namespace {

bool bind_functions(const gpu::DynamicLibrary& library, Functions& table, std::string& why_not) {
    const gpu::FunctionSlot slots[] = {AWAKEN_CCL_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    return library.bind(slots, why_not);
}

constexpr std::array<const char*, 12> kTypeNames = {"int8",    "uint8",    "int32",       "uint32",
                                                    "int64",   "uint64",   "float16",     "float32",
                                                    "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
constexpr std::array<std::size_t, 12> kTypeSizes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr std::array<const char*, 5> kOperationNames = {"sum", "product", "maximum", "minimum", "average"};

/// The version that brought these, which not all versions have. RCCL counts as the NCCL that it corresponds to.
constexpr int kFirstWithAverageAndBfloat16 = 21000;

Status lacking(const char* call, const char* what) noexcept {
    return {kUnsupported, call, what};
}

constexpr const char* kNoFunction = "this version of the library has no such function";

/// Opens and binds the first candidate that is a whole library. Null, with the reasons, when there is none.
const Library* open_library(const gpu::Vendor vendor, const Product& product, std::string& why_not) {
    std::string reasons;
    for (const std::string& path : candidates(vendor)) {
        std::string reason;
        const gpu::DynamicLibrary library = gpu::DynamicLibrary::open({&path, 1}, reason);
        auto functions = std::make_unique<Functions>();
        int version = 0;
        if (library && bind_functions(library, *functions, reason)) {
            if (const int code = functions->version(&version); code == 0) {
                // Both stay: the library cannot be unloaded, and its users may run until the process ends.
                return new Library(product, library.path(), *functions.release(), version);
            }
            reason = library.path() + " does not report its version";
        }
        reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    why_not = std::string(product.title) + " cannot be loaded: " + product.remedy + " (" + reasons + ")";
    return nullptr;
}

}  // namespace

std::string Status::message() const {
    if (ok()) {
        return {};
    }
    return std::string(call != nullptr ? call : "?") + ": " + (description != nullptr ? description : "?") + " (" +
           std::to_string(code) + ")";
}

std::size_t size_of(Type type) noexcept {
    return kTypeSizes[static_cast<std::size_t>(type)];
}

const char* to_string(Type type) noexcept {
    return kTypeNames[static_cast<std::size_t>(type)];
}

const char* to_string(Operation operation) noexcept {
    return kOperationNames[static_cast<std::size_t>(operation)];
}

const Library* find(gpu::Vendor vendor, std::string* why_not) {
    static std::mutex mutex;
    static std::array<const Library*, gpu::kVendors.size() + 1> found = {};
    const Product* const product = product_of(vendor);
    if (product == nullptr) {
        if (why_not != nullptr) {
            *why_not = "there is no GPU runtime in this process: NCCL and RCCL work on GPUs only";
        }
        return nullptr;
    }
    const std::scoped_lock lock(mutex);
    const Library*& slot = found[static_cast<std::size_t>(vendor)];
    if (slot == nullptr) {
        std::string reasons;
        slot = open_library(vendor, *product, reasons);
        if (slot == nullptr && why_not != nullptr) {
            *why_not = reasons;
        }
    }
    return slot;
}

Library::Library(const Product& product, std::string path, const Functions& functions, int version)
    : _product(product), _path(std::move(path)), _functions(functions), _version(version) {}

const char* Library::name() const noexcept {
    return _product.title;
}

std::string Library::title() const {
    // Up to 2.8 the number was major * 1000 + minor * 100 + patch.
    constexpr int kFirstWithWideNumber = 10000;
    const int unit = _version < kFirstWithWideNumber ? 1000 : 10000;
    return std::string(name()) + " " + std::to_string(_version / unit) + "." + std::to_string(_version % unit / 100) +
           "." + std::to_string(_version % 100);
}

bool Library::supports(Type type) const noexcept {
    switch (type) {
        case Type::bfloat16:
            return _version >= kFirstWithAverageAndBfloat16;
        case Type::float8_e4m3:
        case Type::float8_e5m2:
            return _version >= _product.first_with_float8;
        default:
            return true;
    }
}

bool Library::supports(Operation operation) const noexcept {
    return operation != Operation::average || _version >= kFirstWithAverageAndBfloat16;
}

std::string Library::explain(const Status& status, Communicator communicator) const {
    std::string text = status.message();
    if (status.ok() || status.code == kUnsupported || _functions.last_error == nullptr) {
        return text;
    }
    const char* const noted = _functions.last_error(communicator.value);
    if (noted == nullptr || *noted == '\0') {
        return text;
    }
    std::string cause = noted;
    while (!cause.empty() && (cause.back() == '\n' || cause.back() == ' ')) {
        cause.pop_back();
    }
    return text + ": " + cause;
}

Status Library::outcome(int code, const char* call) const noexcept {
    if (code == 0) {
        return {};
    }
    const char* const text = _functions.error_string(code);
    return {code, call, text != nullptr ? text : "unknown error"};
}

Status Library::check(Type type, const char* call) const noexcept {
    return supports(type) ? Status{} : lacking(call, "this version of the library does not know the element type");
}

Status Library::check(Type type, Operation operation, const char* call) const noexcept {
    if (!supports(operation)) {
        return lacking(call, "this version of the library does not know the operation");
    }
    return check(type, call);
}

// ---- communicators --------------------------------------------------------------------------------------------------

Status Library::unique_id(UniqueId& id) const noexcept {
    UniqueId made;
    const int code = _functions.unique_id(&made);
    if (code == 0) {
        id = made;
    }
    return outcome(code, "ncclGetUniqueId");
}

Status Library::init_rank(Communicator& communicator, int ranks, const UniqueId& id, int rank) const noexcept {
    void* made = nullptr;
    const int code = _functions.init_rank(&made, ranks, id, rank);
    if (code == 0) {
        communicator.value = made;
    }
    return outcome(code, "ncclCommInitRank");
}

Status Library::destroy(Communicator communicator) const noexcept {
    if (communicator.value == nullptr) {
        return {};
    }
    return outcome(_functions.destroy(communicator.value), "ncclCommDestroy");
}

Status Library::abort(Communicator communicator) const noexcept {
    if (communicator.value == nullptr) {
        return {};
    }
    if (_functions.abort == nullptr) {
        return lacking("ncclCommAbort", kNoFunction);
    }
    return outcome(_functions.abort(communicator.value), "ncclCommAbort");
}

Status Library::async_error(Communicator communicator, Status& error) const noexcept {
    if (_functions.async_error == nullptr) {
        return lacking("ncclCommGetAsyncError", kNoFunction);
    }
    int pending = 0;
    const int code = _functions.async_error(communicator.value, &pending);
    if (code == 0) {
        error = outcome(pending, "communication");
    }
    return outcome(code, "ncclCommGetAsyncError");
}

Status Library::count(Communicator communicator, int& ranks) const noexcept {
    int answer = 0;
    const int code = _functions.count(communicator.value, &answer);
    if (code == 0) {
        ranks = answer;
    }
    return outcome(code, "ncclCommCount");
}

Status Library::user_rank(Communicator communicator, int& rank) const noexcept {
    int answer = 0;
    const int code = _functions.user_rank(communicator.value, &answer);
    if (code == 0) {
        rank = answer;
    }
    return outcome(code, "ncclCommUserRank");
}

// ---- groups ---------------------------------------------------------------------------------------------------------

Status Library::group_start() const noexcept {
    return outcome(_functions.group_start(), "ncclGroupStart");
}

Status Library::group_end() const noexcept {
    return outcome(_functions.group_end(), "ncclGroupEnd");
}

// ---- communication --------------------------------------------------------------------------------------------------

Status Library::send(const void* data, std::size_t count, Type type, int peer, Communicator communicator,
                     gpu::StreamHandle stream) const noexcept {
    if (_functions.send == nullptr) {
        return lacking("ncclSend", kNoFunction);
    }
    if (const Status status = check(type, "ncclSend"); !status.ok()) {
        return status;
    }
    return outcome(_functions.send(data, count, static_cast<int>(type), peer, communicator.value, stream.value),
                   "ncclSend");
}

Status Library::receive(void* data, std::size_t count, Type type, int peer, Communicator communicator,
                        gpu::StreamHandle stream) const noexcept {
    if (_functions.receive == nullptr) {
        return lacking("ncclRecv", kNoFunction);
    }
    if (const Status status = check(type, "ncclRecv"); !status.ok()) {
        return status;
    }
    return outcome(_functions.receive(data, count, static_cast<int>(type), peer, communicator.value, stream.value),
                   "ncclRecv");
}

Status Library::all_reduce(const void* send, void* receive, std::size_t count, Type type, Operation operation,
                           Communicator communicator, gpu::StreamHandle stream) const noexcept {
    if (const Status status = check(type, operation, "ncclAllReduce"); !status.ok()) {
        return status;
    }
    return outcome(_functions.all_reduce(send, receive, count, static_cast<int>(type), static_cast<int>(operation),
                                         communicator.value, stream.value),
                   "ncclAllReduce");
}

Status Library::reduce(const void* send, void* receive, std::size_t count, Type type, Operation operation, int root,
                       Communicator communicator, gpu::StreamHandle stream) const noexcept {
    if (const Status status = check(type, operation, "ncclReduce"); !status.ok()) {
        return status;
    }
    return outcome(_functions.reduce(send, receive, count, static_cast<int>(type), static_cast<int>(operation), root,
                                     communicator.value, stream.value),
                   "ncclReduce");
}

Status Library::broadcast(const void* send, void* receive, std::size_t count, Type type, int root,
                          Communicator communicator, gpu::StreamHandle stream) const noexcept {
    if (_functions.broadcast == nullptr) {
        return lacking("ncclBroadcast", kNoFunction);
    }
    if (const Status status = check(type, "ncclBroadcast"); !status.ok()) {
        return status;
    }
    return outcome(
        _functions.broadcast(send, receive, count, static_cast<int>(type), root, communicator.value, stream.value),
        "ncclBroadcast");
}

Status Library::all_gather(const void* send, void* receive, std::size_t count, Type type, Communicator communicator,
                           gpu::StreamHandle stream) const noexcept {
    if (const Status status = check(type, "ncclAllGather"); !status.ok()) {
        return status;
    }
    return outcome(
        _functions.all_gather(send, receive, count, static_cast<int>(type), communicator.value, stream.value),
        "ncclAllGather");
}

Status Library::reduce_scatter(const void* send, void* receive, std::size_t count, Type type, Operation operation,
                               Communicator communicator, gpu::StreamHandle stream) const noexcept {
    if (const Status status = check(type, operation, "ncclReduceScatter"); !status.ok()) {
        return status;
    }
    return outcome(_functions.reduce_scatter(send, receive, count, static_cast<int>(type), static_cast<int>(operation),
                                             communicator.value, stream.value),
                   "ncclReduceScatter");
}

}  // namespace awaken::ccl
