// One error type for the whole library: what went wrong, and what the user can do about it.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace awaken {

/// Thrown inside the library when an operation cannot be carried out.
///
/// It never leaves the library: the entry points turn it into an MPI error on the caller's communicator, the
/// command-line tools into one line on stderr and a non-zero exit.
class Error : public std::exception {
  public:
    /// @param cause  what happened, without a trailing full stop ("AWAKEN_GPU=cud is not a GPU runtime").
    /// @param remedy what to do ("use auto, cuda, hip or none").
    Error(std::string cause, std::string remedy)
        : _cause(std::move(cause)), _remedy(std::move(remedy)), _text(_cause + ": " + _remedy) {}

    [[nodiscard]] const char* what() const noexcept override { return _text.c_str(); }
    [[nodiscard]] const std::string& cause() const noexcept { return _cause; }
    [[nodiscard]] const std::string& remedy() const noexcept { return _remedy; }

  private:
    std::string _cause;
    std::string _remedy;
    std::string _text;
};

}  // namespace awaken
