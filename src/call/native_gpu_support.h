// Whether the program's MPI takes device memory by itself: then the layer stays out of its way.
#pragma once

#include <mutex>
#include <string>

namespace awaken::AWAKEN_ABI {

class Layer;

class NativeGpuSupport {
  public:
    explicit NativeGpuSupport(Layer& owner) : _owner(owner) {}

    /// To be asked when MPI is up and a GPU was found; looked into once.
    [[nodiscard]] bool works();
    /// For the report, such as "yes: `awaken doctor` tried it (...)"; empty as long as nobody has asked.
    [[nodiscard]] const std::string& who_says() const noexcept { return _answer.who_says; }

  private:
    struct Answer {
        bool works = false;
        std::string who_says;
    };
    [[nodiscard]] Answer find();

    Layer& _owner;
    std::once_flag _once;
    Answer _answer;
};

}  // namespace awaken::AWAKEN_ABI
