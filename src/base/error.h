// One error type for the whole library: what went wrong, and what the user can do about it.
#pragma once

#include <cstdint>
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
    /// What MPIs have an error class of their own for, some at least.
    enum class Kind : std::uint8_t { other, failed_process, revoked };

    /// @param cause  what happened, without a trailing full stop ("AWAKEN_GPU=cud is not a GPU runtime").
    /// @param remedy what to do ("use auto, cuda, hip or none").
    Error(std::string cause, std::string remedy, const Kind kind = Kind::other)
        : _cause(std::move(cause)), _remedy(std::move(remedy)), _text(_cause + ": " + _remedy), _kind(kind) {}

    [[nodiscard]] const char* what() const noexcept override { return _text.c_str(); }
    [[nodiscard]] const std::string& cause() const noexcept { return _cause; }
    [[nodiscard]] const std::string& remedy() const noexcept { return _remedy; }
    [[nodiscard]] Kind kind() const noexcept { return _kind; }

  private:
    std::string _cause;
    std::string _remedy;
    std::string _text;
    Kind _kind;
};

}  // namespace awaken
