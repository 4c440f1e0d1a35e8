// SPDX-License-Identifier: Apache-2.0
// Whether the program's MPI itself takes device memory. If so, the layer does nothing.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace awaken::AWAKEN_ABI {

class Layer;

class NativeGpuSupport {
  public:
    explicit NativeGpuSupport(Layer& owner) : _owner(owner) {}

    /// Called when MPI is up and a GPU was found. Looks only once.
    [[nodiscard]] bool works() { return _is_known.load(std::memory_order_acquire) ? _answer.works : look(); }
    /// For the report, such as "yes: `awaken doctor` tried it (...)". Empty until works() was called.
    [[nodiscard]] const std::string& who_says() const noexcept { return _answer.who_says; }

  private:
    struct Answer {
        bool works = false;
        std::string who_says;
    };
    [[nodiscard]] Answer find();
    [[nodiscard]] bool look();

    Layer& _owner;
    std::once_flag _once;
    std::atomic<bool> _is_known{false};  ///< asked for each message, where std::call_once is slow
    Answer _answer;
};

}  // namespace awaken::AWAKEN_ABI
