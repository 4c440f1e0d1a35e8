// SPDX-License-Identifier: Apache-2.0
#include "mpi/bytes_type.h"

#include <utility>
#include <vector>

namespace awaken::AWAKEN_ABI {

BytesType::BytesType(const Native& native, const std::int64_t bytes, const bool swapped)
    : _native(native), _bytes(bytes), _swapped(swapped) {
    constexpr std::int64_t kChunk = std::int64_t{1} << 30;
    const std::int64_t body = swapped ? bytes - 2 : bytes, chunks = body / kChunk;
    MPI_Datatype chunk = MPI_DATATYPE_NULL, all_chunks = MPI_BYTE;
    if (chunks > 0) {
        native.Type_contiguous(static_cast<int>(kChunk), MPI_BYTE, &chunk);
        native.Type_contiguous(static_cast<int>(chunks), chunk, &all_chunks);
        native.Type_free(&chunk);
    }
    int lengths[] = {chunks > 0 ? 1 : 0, static_cast<int>(body % kChunk), 1, 1};
    MPI_Aint places[] = {0, static_cast<MPI_Aint>(chunks * kChunk), static_cast<MPI_Aint>(bytes - 1),
                         static_cast<MPI_Aint>(bytes - 2)};
    MPI_Datatype types[] = {all_chunks, MPI_BYTE, MPI_BYTE, MPI_BYTE};
    native.Type_create_struct(swapped ? 4 : 2, lengths, places, types, &_type);
    native.Type_commit(&_type);
    if (chunks > 0) {
        native.Type_free(&all_chunks);
    }
}

BytesType::~BytesType() {
    _native.Type_free(&_type);
}

void BytesType::put_right(std::byte* const data, const std::int64_t length) const noexcept {
    // Of a message that is one byte shorter, that byte lies in the last place, and nobody reads what lay in its own.
    if (_swapped && length >= _bytes - 1) {
        std::swap(data[_bytes - 2], data[_bytes - 1]);
    }
}

std::shared_ptr<const BytesType> ReceiveTypes::find(const std::int64_t bytes) {
    if (_stops_at_the_end || bytes < 2) {
        return nullptr;
    }
    // A program of sessions alone has no communicator to find out with.
    if (_world_up.load(std::memory_order_acquire)) {
        std::call_once(_once, [this] { _writes_beyond_the_end = writes_beyond_the_end(); });
    }
    if (!_writes_beyond_the_end) {
        return nullptr;
    }
    constexpr std::size_t kKept = 64;
    const std::scoped_lock lock(_mutex);
    if (_known.size() >= kKept && !_known.contains(bytes)) {
        _known.clear();
    }
    std::shared_ptr<const BytesType>& type = _known[bytes];
    if (type == nullptr) {
        type = std::make_shared<const BytesType>(_native, bytes, true);
    }
    return type;
}

void ReceiveTypes::clear() {
    const std::scoped_lock lock(_mutex);
    _known.clear();
}

bool ReceiveTypes::writes_beyond_the_end() const {
    constexpr int kRoom = 4 << 10, kSent = 256 << 10;  // more than any MPI sends before the receiver asks for it
    MPI_Comm self = MPI_COMM_NULL;
    if (_native.Comm_split(MPI_COMM_SELF, 0, 0, &self) != MPI_SUCCESS || self == MPI_COMM_NULL) {
        return true;
    }
    _native.Comm_set_errhandler(self, MPI_ERRORS_RETURN);
    const std::vector<char> sent(kSent, 1);
    std::vector<char> received(kSent, 0);
    MPI_Request sending = MPI_REQUEST_NULL;
    _native.Isend(sent.data(), kSent, MPI_BYTE, 0, 0, self, &sending);
    _native.Recv(received.data(), kRoom, MPI_BYTE, 0, 0, self, MPI_STATUS_IGNORE);
    _native.Wait(&sending, MPI_STATUS_IGNORE);
    _native.Comm_free(&self);
    return received[kRoom] != 0;
}

}  // namespace awaken::AWAKEN_ABI
