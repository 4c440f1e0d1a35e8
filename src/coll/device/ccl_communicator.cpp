// SPDX-License-Identifier: Apache-2.0
#include "coll/device/ccl_communicator.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/own_thread.h"
#include "gpu/kernels/codes.h"

namespace awaken::coll {

namespace {

using kernels::ElementType;
using kernels::ReductionOperation;

std::optional<ccl::Type> type_of(const std::uint32_t code) noexcept {
    switch (kernels::type_of(code)) {
        case ElementType::int8:
            return ccl::Type::int8;
        case ElementType::uint8:
            return ccl::Type::uint8;
        case ElementType::int32:
            return ccl::Type::int32;
        case ElementType::uint32:
            return ccl::Type::uint32;
        case ElementType::int64:
            return ccl::Type::int64;
        case ElementType::uint64:
            return ccl::Type::uint64;
        case ElementType::float16:
            return ccl::Type::float16;
        case ElementType::bfloat16:
            return ccl::Type::bfloat16;
        case ElementType::float32:
            return ccl::Type::float32;
        case ElementType::float64:
            return ccl::Type::float64;
        default:
            return std::nullopt;
    }
}

std::optional<ccl::Operation> operation_of(const std::uint32_t code) noexcept {
    switch (kernels::operation_of(code)) {
        case ReductionOperation::sum:
            return ccl::Operation::sum;
        case ReductionOperation::product:
            return ccl::Operation::product;
        case ReductionOperation::minimum:
            return ccl::Operation::minimum;
        case ReductionOperation::maximum:
            return ccl::Operation::maximum;
        default:
            return std::nullopt;
    }
}

/// Bytes travel as the widest elements that fit, since the library limits the number of elements.
std::pair<std::uint64_t, ccl::Type> elements_of(const std::uint64_t bytes) {
    return bytes % 8 == 0 ? std::pair(bytes / 8, ccl::Type::uint64) : std::pair(bytes, ccl::Type::uint8);
}

}  // namespace

/// The data of the joining thread. It outlives the object when the library never returns.
struct CclCommunicator::Attempt {
    enum class Outcome : std::uint8_t { under_way, joined, failed };
    std::atomic<Outcome> outcome{Outcome::under_way};
    std::atomic<bool> abandoned{false};
    ccl::Communicator communicator;
    std::string reason;
    std::thread thread;
};

bool CclCommunicator::supports(const ccl::Library& library, const Kind kind, const std::uint32_t code) noexcept {
    switch (kind) {
        case Kind::allreduce:
        case Kind::reduce:
        case Kind::reduce_scatter: {
            const auto type = type_of(code);
            const auto operation = operation_of(code);
            return type && operation && library.supports(*type) && library.supports(*operation);
        }
        case Kind::broadcast:
        case Kind::allgather:
        case Kind::alltoall:
            return true;
        case Kind::gather:  // in parts only
        case Kind::scatter:
        case Kind::scan:
        case Kind::exscan:
        case Kind::barrier:
        case Kind::neighborhood:
            return false;
    }
    return false;
}

CclCommunicator::~CclCommunicator() {
    begin_to_leave();
    if (_leaving.joinable()) {
        _leaving.join();
    }
    abort();
}

void CclCommunicator::begin_to_leave() noexcept {
    if (_attempt != nullptr || _communicator.value == nullptr) {
        return;
    }
    const auto leave = [library = _library, runtime = _runtime, device = _device, left = _left,
                        communicator = std::exchange(_communicator, {})] {
        static_cast<void>(runtime->run_on(device, [&] { static_cast<void>(library->destroy(communicator)); }));
        left->store(true, std::memory_order_release);
    };
    _left->store(false, std::memory_order_release);
    _leaving = start_own_thread(leave);
    if (!_leaving.joinable()) {
        leave();
    }
}

void CclCommunicator::join(const ccl::Library& library, gpu::Runtime& runtime, const int device,
                           const ccl::UniqueId& identifier, const int members, const int own) {
    _library = &library;
    _runtime = &runtime;
    _device = device;
    _attempt = std::make_shared<Attempt>();
    _attempt->thread = start_own_thread([attempt = _attempt, identifier, &library, &runtime, device, members, own] {
        ccl::Status status;
        const gpu::Status current = runtime.run_on(device, [&] {
            status = library.init_rank(attempt->communicator, members, identifier, own);
            if (!status.ok()) {
                attempt->reason = library.explain(status);
            } else if (attempt->abandoned.load(std::memory_order_acquire)) {
                static_cast<void>(library.abort(attempt->communicator));
            }
        });
        if (!current.ok()) {
            attempt->reason = current.message();
        }
        attempt->outcome.store(current.ok() && status.ok() ? Attempt::Outcome::joined : Attempt::Outcome::failed,
                               std::memory_order_release);
    });
    if (!_attempt->thread.joinable()) {
        _attempt->reason = "no thread could be started for it";
        _attempt->outcome.store(Attempt::Outcome::failed, std::memory_order_release);
    }
}

void CclCommunicator::leave_alone() noexcept {
    if (_leaving.joinable()) {
        _leaving.detach();
    }
}

CclCommunicator::Joining CclCommunicator::joining() {
    if (_attempt == nullptr) {
        return _communicator.value != nullptr ? Joining::joined : Joining::failed;
    }
    const Attempt::Outcome outcome = _attempt->outcome.load(std::memory_order_acquire);
    if (outcome == Attempt::Outcome::under_way) {
        return Joining::under_way;
    }
    if (_attempt->thread.joinable()) {
        _attempt->thread.join();
    }
    _communicator = _attempt->communicator;
    _reason = _attempt->reason;
    _attempt.reset();
    return outcome == Attempt::Outcome::joined ? Joining::joined : Joining::failed;
}

void CclCommunicator::abort() noexcept {
    static_cast<void>(joining());
    if (_communicator.value != nullptr) {
        static_cast<void>(_runtime->run_on(_device, [&] { static_cast<void>(_library->abort(_communicator)); }));
    }
    give_up();
}

void CclCommunicator::give_up() noexcept {
    if (_attempt != nullptr && _attempt->thread.joinable()) {
        // The thread may never return, if another member failed before it joined.
        _attempt->abandoned.store(true, std::memory_order_release);
        _attempt->thread.detach();
    }
    _attempt.reset();
    _communicator = {};
}

void CclCommunicator::Issuer::require(const ccl::Status& status) const {
    if (!status.ok()) {
        throw Error(_library->title() + ": " + _library->explain(status, _communicator),
                    "AWAKEN_COLLECTIVES=\"* nodes=1 : two-shot; * nodes=2- : hierarchical\" does without it");
    }
}

void CclCommunicator::Issuer::issue_parts(const Operation& operation, const gpu::StreamHandle stream) const {
    require(_library->group_start());
    ccl::Status first;
    const auto note = [&first](const ccl::Status& status) { first = first.ok() ? status : first; };
    if (operation.kind == Kind::allgather) {
        // Each part is a broadcast, which takes the part from node to node once.
        for (const Operation::Block& part : operation.from) {
            const auto [count, type] = elements_of(part.bytes);
            const bool own = part.member == operation.own && operation.send != nullptr;
            note(_library->broadcast(own ? operation.send : part.address, part.address, count, type, part.member,
                                     _communicator, stream));
        }
    } else {
        for (const Operation::Block& part : operation.to) {
            const auto [count, type] = elements_of(part.bytes);
            note(_library->send(part.address, count, type, part.member, _communicator, stream));
        }
        for (const Operation::Block& part : operation.from) {
            const auto [count, type] = elements_of(part.bytes);
            note(_library->receive(part.address, count, type, part.member, _communicator, stream));
        }
    }
    note(_library->group_end());  // ends what was begun
    require(first);
}

void CclCommunicator::Issuer::issue(const Operation& operation, const gpu::StreamHandle stream) const {
    if (operation.in_parts) {
        issue_parts(operation, stream);
        return;
    }
    switch (operation.kind) {
        case Kind::allreduce:
            require(_library->all_reduce(operation.send, operation.receive, operation.elements,
                                         *type_of(operation.code), *operation_of(operation.code), _communicator,
                                         stream));
            break;
        case Kind::reduce:
            require(_library->reduce(operation.send, operation.receive, operation.elements, *type_of(operation.code),
                                     *operation_of(operation.code), operation.root, _communicator, stream));
            break;
        case Kind::reduce_scatter:
            require(_library->reduce_scatter(operation.send, operation.receive, operation.elements,
                                             *type_of(operation.code), *operation_of(operation.code), _communicator,
                                             stream));
            break;
        case Kind::broadcast: {
            const auto [count, type] = elements_of(operation.elements);
            std::byte* const buffer = operation.own == operation.root ? operation.send : operation.receive;
            require(_library->broadcast(buffer, buffer, count, type, operation.root, _communicator, stream));
            break;
        }
        case Kind::allgather: {
            const auto [count, type] = elements_of(operation.block_bytes);
            require(_library->all_gather(operation.send, operation.receive, count, type, _communicator, stream));
            break;
        }
        case Kind::alltoall: {
            const auto [count, type] = elements_of(operation.block_bytes);
            require(_library->group_start());
            ccl::Status first;
            const auto note = [&first](const ccl::Status& status) { first = first.ok() ? status : first; };
            for (int member = 0; member < operation.members; ++member) {
                const std::uint64_t at = operation.block_bytes * static_cast<std::uint64_t>(member);
                note(_library->send(operation.send + at, count, type, member, _communicator, stream));
                note(_library->receive(operation.receive + at, count, type, member, _communicator, stream));
            }
            note(_library->group_end());  // ends what was begun
            require(first);
            break;
        }
        case Kind::gather:
        case Kind::scatter:
        case Kind::scan:
        case Kind::exscan:
        case Kind::barrier:
        case Kind::neighborhood:
            throw Error("the library has no such collective", "this is a bug in Awaken: please report it");
    }
}

void CclCommunicator::check() const {
    ccl::Status error;
    if (_library->async_error(_communicator, error).ok() && !error.ok() && error.code != ccl::kInProgress) {
        throw Error(_library->title() + ": " + _library->explain(error, _communicator),
                    "look at the other ranks' output for the reason");
    }
}

}  // namespace awaken::coll
