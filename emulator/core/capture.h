// SPDX-License-Identifier: Apache-2.0
// Captures of streams into graphs.
//
// What is given to a stream under capture is recorded instead of done. A graph is the list of its work in the order of
// the calls, of all streams that belong to the capture: an order that satisfies every dependence among them. Questions
// and allocations can make a capture fail, and a thread can say that its own are harmless. Which calls do was seen on
// an H200 with driver 580, where all agree with the documentation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/stream.h"

namespace awaken::emulator {

enum class CaptureMode : int {
    global = 0,  ///< no thread may do what could be unsafe while any other captures so
    local = 1,   ///< the thread that captures may not
    relaxed = 2  ///< everything is allowed
};

/// Something of the program's that lives as long as graphs hold it. Its end is told where no call of the GPU's library
/// is permitted.
class UserObject {
  public:
    UserObject(void* pointer, void (*destroy)(void*)) : _pointer(pointer), _destroy(destroy) {}
    ~UserObject();
    UserObject(const UserObject&) = delete;
    UserObject& operator=(const UserObject&) = delete;

  private:
    void* _pointer;
    void (*_destroy)(void*);
};

struct Graph {
    std::vector<Work> works;
    bool memory_waits = false;  ///< there is work among them that waits for a value in memory
    std::vector<std::shared_ptr<UserObject>> objects;
};

Error begin_capture(const Stream& stream, CaptureMode mode);
/// Error::capture_invalidated when something spoiled it; the graph is of no use then. The stream is the one that it
/// began with.
Error end_capture(const Stream& stream, std::shared_ptr<Graph>& graph);
[[nodiscard]] bool is_capturing(const Stream& stream);
/// The answer to a program that asks. Refused for a default stream while a stream that it waits for is captured. That
/// harms no capture, unlike all other calls on it.
[[nodiscard]] Error capture_status(const Stream& stream, bool& capturing);
/// Identity of the capture that a stream belongs to; 0 for none.
[[nodiscard]] std::uint64_t capture_of(const Stream& stream);
/// How much the stream's capture has collected.
[[nodiscard]] std::size_t captured_works(const Stream& stream);
/// The graph that grows meanwhile; null for none.
[[nodiscard]] std::shared_ptr<Graph> graph_of(const Stream& stream);
/// Makes the stream belong to the capture; false when that is over.
[[nodiscard]] bool join_capture(const Stream& stream, std::uint64_t capture);
/// Adds work to the capture that a stream belongs to; false when it belongs to none.
[[nodiscard]] bool record_in_capture(const Stream& stream, const Work& work, bool memory_wait = false);
/// Spoils the capture that a stream belongs to: `reason`, or success when it belongs to none.
[[nodiscard]] Error spoil_capture(const Stream& stream, Error reason);
/// Puts the calling thread's mode before the call in the place of the new one.
[[nodiscard]] Error exchange_capture_mode(int* mode) noexcept;

/// For calls that could be unsafe while a stream is captured: refuses them, and spoils the captures that forbid them.
[[nodiscard]] Error allowed_by_captures();
/// For questions about a stream, and waiting for it: not while it is captured.
[[nodiscard]] inline Error question_allowed(const Stream& stream) {
    return spoil_capture(stream, Error::capture_unsupported);
}
/// For questions about a default stream and for its work: neither is possible while a stream that it waits for is
/// captured. What the thread says of its calls does not help here.
[[nodiscard]] Error default_stream_allowed(const Stream& stream);
/// For an event of all work of a context, and for waiting for that. Neither is possible while one of its streams is
/// captured, in whatever mode.
[[nodiscard]] Error whole_context_allowed(const Context& context);

}  // namespace awaken::emulator
