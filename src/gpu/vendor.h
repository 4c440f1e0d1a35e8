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
enum class Readiness : std::uint8_t {
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
    virtual Readiness prepare(bool initialise, std::string* why_not) = 0;

    Status finish_default_stream(int device) noexcept final {
        return trusts_default_stream() ? Status{} : _default_streams.finish(device);
    }
    Status mark_default_stream(int device, EventHandle& mark) noexcept final {
        return trusts_default_stream() ? Status{} : _default_streams.mark(device, mark);
    }
    Status query_default_stream(EventHandle& mark, bool& over) noexcept final {
        return _default_streams.query(mark, over);
    }
    void drop_default_stream(EventHandle& mark) noexcept final { _default_streams.drop(mark); }

  protected:
    IdleProbe _idle_probe;

  private:
    DefaultStreams _default_streams{*this};
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

}  // namespace awaken::gpu
