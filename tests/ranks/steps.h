// SPDX-License-Identifier: Apache-2.0
// What the cases about completion and about messages share: options of their own, steps, tokens, room for buffered
// sends.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "support.h"

namespace ranks {

/// Takes `NAME=VALUE` or `NAME` out of the arguments, before the frame sees them, which refuses what it does not know.
/// Nothing when it is not there.
inline std::optional<std::string> take_option(int& argc, char** argv, const std::string& name) {
    std::optional<std::string> value;
    int kept = 1;
    for (int at = 1; at < argc; ++at) {
        const std::string argument = argv[at];
        if (argument == name) {
            value = "";
        } else if (argument.rfind(name + "=", 0) == 0) {
            value = argument.substr(name.size() + 1);
        } else {
            argv[kept++] = argv[at];
        }
    }
    argc = kept;
    argv[argc] = nullptr;
    return value;
}

/// Part of a case, from the construction to the end of the scope. It has the watch-dog's whole time for itself, and the
/// watch-dog tells its name: a message path that hangs is found by that. How long a step takes is no matter of a test,
/// since it depends on what else the machine does; `--times` prints it for a look by hand.
class Step {
  public:
    Step(Run& run, const std::string& name) : _length(std::strlen(detail::running_case)), _start(MPI_Wtime()) {
        std::snprintf(detail::running_case + _length, sizeof detail::running_case - _length, ": %s", name.c_str());
        detail::set_watchdog(detail::watchdog_seconds);
        _tells = detail::print_times && run.rank == 0;
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    ~Step() {
        if (_tells) {
            std::printf("# step %.6f s %s\n", MPI_Wtime() - _start, detail::running_case);
        }
        detail::running_case[_length] = '\0';
        detail::set_watchdog(detail::watchdog_seconds);
    }

  private:
    const std::size_t _length;
    const double _start;
    bool _tells = false;
};

/// A message without content, from which its receiver learns that the sender has come to this place.
inline void send_token(Run& run, int to, int tag) {
    OK(MPI_Send(nullptr, 0, MPI_BYTE, to, tag, run.comm));
}
inline void await_token(Run& run, int from, int tag) {
    OK(MPI_Recv(nullptr, 0, MPI_BYTE, from, tag, run.comm, MPI_STATUS_IGNORE));
}

/// Attached for buffered sends while it lives. Its end waits until their messages are on their way.
class RoomForBufferedSends {
  public:
    RoomForBufferedSends(std::size_t bytes, int messages)
        : _memory(bytes + static_cast<std::size_t>(messages) * (MPI_BSEND_OVERHEAD + 64) + 256) {
        MPI_Buffer_attach(_memory.data(), static_cast<int>(_memory.size()));
    }
    RoomForBufferedSends(const RoomForBufferedSends&) = delete;
    RoomForBufferedSends& operator=(const RoomForBufferedSends&) = delete;
    ~RoomForBufferedSends() {
        void* address = nullptr;
        int bytes = 0;
        MPI_Buffer_detach(&address, &bytes);
    }

  private:
    std::vector<std::byte> _memory;
};

/// Keeps this thread's processor busy, without MPI and without the GPU.
inline void compute(double milliseconds) {
    const double end = MPI_Wtime() + milliseconds / 1000;
    volatile double sum = 0;
    while (MPI_Wtime() < end) {
        for (int at = 0; at < 1000; ++at) {
            sum = sum + at;
        }
    }
}

}  // namespace ranks
