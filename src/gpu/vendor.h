// SPDX-License-Identifier: Apache-2.0
// The interface of a vendor's file for find.cpp and the tests. Internal to src/gpu.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "gpu/default_streams.h"
#include "gpu/dynamic_library.h"
#include "gpu/gpu.h"
#include "gpu/idle.h"
#include "gpu/runtime_compiler.h"

namespace awaken::gpu {

/// How far the program has got with a loaded runtime.
enum class RuntimeState : std::uint8_t {
    ready,            ///< initialised, at least one device
    not_initialised,  ///< loaded only; may become ready at any time, without a further library being loaded
    no_device         ///< will not become ready as things stand
};

/// A runtime as find() sees it.
class VendorRuntime : public Runtime {
  public:
    /// Nobody gets the runtime until this has answered `ready`. With `initialise` the call initialises the runtime for
    /// the program (the user chose it). Otherwise it waits for the program to do so. `why_not` may be null. Calls that
    /// answer `ready` must not run at the same time as others.
    virtual RuntimeState prepare(bool initialise, std::string* why_not) = 0;

    Status finish_default_stream(int device) noexcept final {
        if (trusts_default_stream()) {
            return {};
        }
        const Question question(times_default_stream() ? this : nullptr, true);
        return _default_streams.finish(device);
    }
    Status mark_default_stream(int device, EventHandle& mark) noexcept final {
        if (trusts_default_stream()) {
            return {};
        }
        const Question question(times_default_stream() ? this : nullptr, true);
        return _default_streams.mark(device, mark);
    }
    Status query_default_stream(EventHandle& mark, bool& over) noexcept final {
        const Question question(times_default_stream() ? this : nullptr, false);
        return _default_streams.query(mark, over);
    }
    void drop_default_stream(EventHandle& mark) noexcept final { _default_streams.drop(mark); }
    [[nodiscard]] StreamQuestions stream_questions() const noexcept final {
        return {_asked.load(std::memory_order_relaxed), _waited_long.load(std::memory_order_relaxed),
                std::chrono::nanoseconds(_asking.load(std::memory_order_relaxed))};
    }

  protected:
    IdleProbe _idle_probe;

  private:
    /// Times one of the calls about the default stream.
    class Question {
      public:
        /// @param runtime  null: is not timed.
        Question(VendorRuntime* const runtime, const bool is_new) noexcept : _runtime(runtime) {
            if (_runtime != nullptr) {
                _runtime->_asked.fetch_add(is_new ? 1 : 0, std::memory_order_relaxed);
                _start = std::chrono::steady_clock::now();
            }
        }
        ~Question() {
            if (_runtime != nullptr) {
                const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - _start;
                _runtime->_asking.fetch_add(time.count(), std::memory_order_relaxed);
                _runtime->_waited_long.fetch_add(time > kLong ? 1 : 0, std::memory_order_relaxed);
            }
        }
        Question(const Question&) = delete;
        Question& operator=(const Question&) = delete;

      private:
        /// A question takes 1.7 us on an H100 when nothing is left to wait for.
        static constexpr std::chrono::microseconds kLong{20};
        VendorRuntime* const _runtime;
        std::chrono::steady_clock::time_point _start;
    };

    DefaultStreams _default_streams{*this};
    std::atomic<std::uint64_t> _asked{0}, _waited_long{0};
    std::atomic<std::int64_t> _asking{0};  ///< nanoseconds
};

/// One vendor: how find.cpp recognises its library and makes a runtime of it.
struct VendorLibrary {
    Vendor vendor;
    const char* title;  ///< for messages: "CUDA driver"
    const char* stem;   ///< file name without version: "libcuda"
    /// The names to open, in this order, when the user asks for the vendor and the program has not loaded its library.
    std::span<const char* const> names;
    /// Null when required functions are missing; `why_not` says which.
    std::unique_ptr<VendorRuntime> (*make)(DynamicLibrary library, std::string& why_not);
    /// The vendor's run-time compiler, which needs no GPU; null with `why_not` when there is none.
    std::unique_ptr<RuntimeCompiler> (*make_compiler)(std::string& why_not);
};

[[nodiscard]] const VendorLibrary& cuda_library() noexcept;
[[nodiscard]] const VendorLibrary& hip_library() noexcept;

/// See VendorLibrary::make_compiler.
[[nodiscard]] std::unique_ptr<RuntimeCompiler> make_nvrtc(std::string& why_not);
[[nodiscard]] std::unique_ptr<RuntimeCompiler> make_hiprtc(std::string& why_not);

}  // namespace awaken::gpu
