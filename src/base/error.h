// SPDX-License-Identifier: Apache-2.0
// One error type for the whole library: the cause, and the remedy for the user.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace awaken {

/// The library throws this inside when it cannot carry out an operation.
///
/// It never leaves the library: the entry points turn it into an MPI error on the caller's communicator, and the
/// command-line tools into one line on stderr and a non-zero exit.
class Error : public std::exception {
  public:
    /// Kinds for which MPIs, at least some, have an error class of their own.
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
