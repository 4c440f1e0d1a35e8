// Calls that the two run-time libraries (CUDA's and HIP's) have, and the driver has not, or in another form.
#pragma once

#include "calls/copies.h"
#include "calls/devices.h"
#include "calls/memory.h"
#include "calls/streams.h"
#include "runtime_state.h"

namespace awaken::emulator::calls {

template <typename Api>
concept Runtime = FrontEnd<Api> && requires {
    // Whether it is a direction of a copy.
    { Api::valid_kind(int{}) } -> std::same_as<bool>;
    // Of rows in memory.
    { Api::pitch_alignment } -> std::convertible_to<std::size_t>;
};

inline int last_error() {
    return static_cast<int>(std::exchange(thread_state().last_error, Error::success));
}

// Calls without a stream use the legacy default stream; the forms for a default stream per thread (_ptds, _ptsz, _spt)
// use the calling thread's own.
inline void* const kPerThread = reinterpret_cast<void*>(2);

/// What the handle 0 means in those forms.
[[nodiscard]] inline void* or_per_thread(void* stream) noexcept {
    return stream ? stream : kPerThread;
}

constexpr int kAnyDirection = 4;  // cudaMemcpyDefault, hipMemcpyDefault

template <Runtime Api>
int copy_rows(const CopyRequest& request, int kind, void* handle, Synchrony synchrony) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        return Api::valid_kind(kind) ? copy(stream->context(), request, stream, synchrony)
                                     : Error::invalid_copy_direction;
    });
}

template <Runtime Api>
int copy_bytes(Address destination, Address source, std::size_t bytes, int kind, void* stream, Synchrony synchrony) {
    return copy_rows<Api>({destination, bytes, source, bytes, bytes, 1}, kind, stream, synchrony);
}

/// `rows` rows of `width` bytes that all are the last one of `value`.
template <Runtime Api>
int fill_bytes(Address address, std::size_t pitch, int value, std::size_t width, std::size_t rows, void* stream,
               Synchrony synchrony) {
    return fill_rows<Api>({address, pitch, static_cast<std::uint32_t>(value) & 0xffU, 1, width, rows}, stream,
                          synchrony);
}

}  // namespace awaken::emulator::calls
