// Captures of streams into graphs, as far as other calls can spoil them.
//
// Nothing is recorded: a graph is empty, and what is given to a stream under capture is done at once. What is kept to
// is which questions and allocations make a capture fail, and how a thread says that its own are harmless.
#pragma once

#include "core/error.h"
#include "core/stream.h"

namespace awaken::emulator {

enum class CaptureMode : int {
    global = 0,  ///< no thread may do what could be unsafe while any other captures so
    local = 1,   ///< the thread that captures may not
    relaxed = 2  ///< everything is allowed
};

Error begin_capture(const Stream& stream, CaptureMode mode);
/// Error::capture_invalidated when something spoiled it.
Error end_capture(const Stream& stream);
[[nodiscard]] bool is_capturing(const Stream& stream);
/// The calling thread's mode from now on; returns the one before.
CaptureMode exchange_capture_mode(CaptureMode mode) noexcept;

/// For calls that could be unsafe while a stream is captured: refuses them, and spoils the captures that forbid them.
[[nodiscard]] Error allowed_by_captures();
/// For questions about a default stream and for its work: neither is possible while a stream that it waits for is
/// captured. What the thread says of its calls does not help here.
[[nodiscard]] Error default_stream_allowed(const Stream& stream);
/// For an event of all work of a context, which cannot be had while one of its streams is captured, in whatever mode.
[[nodiscard]] Error context_event_allowed(const Context& context);

}  // namespace awaken::emulator
