// SPDX-License-Identifier: Apache-2.0
#include "topology/ipc.h"

#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>

extern char** environ;

namespace awaken::topology {
namespace {

constexpr std::size_t kBytes = 4096;
/// For an answer. The first takes longest: the child starts the GPU runtime for it.
constexpr int kPatienceMs = 60000;

unsigned char content(const int owner, const std::size_t index) {
    return static_cast<unsigned char>((index * 31 + static_cast<std::size_t>(owner) * 101 + 7) & 0xFF);
}

bool read_hexadecimal(const std::string& text, gpu::IpcMemoryHandle& handle) {
    if (text.size() != 2 * sizeof handle.bytes) {
        return false;
    }
    for (std::size_t i = 0; i < sizeof handle.bytes; ++i) {
        unsigned byte = 0;
        if (std::sscanf(text.c_str() + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        handle.bytes[i] = static_cast<unsigned char>(byte);
    }
    return true;
}

/// A child that runs this program, with a pipe either way.
class Child {
  public:
    Child() {
        std::array<int, 2> down{};
        std::array<int, 2> up{};
        if (pipe(down.data()) != 0) {
            return;
        }
        if (pipe(up.data()) != 0) {
            close(down[0]);
            close(down[1]);
            return;
        }
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
        for (const int end : {down[0], down[1], up[0], up[1]}) {
            posix_spawn_file_actions_addclose(&actions, end);
        }
        std::string program = "awaken-topology";
        std::string word = kIpcChildWord;
        std::array<char*, 3> words{program.data(), word.data(), nullptr};
        if (posix_spawn(&_process, "/proc/self/exe", &actions, nullptr, words.data(), environ) != 0) {
            _process = -1;
        }
        posix_spawn_file_actions_destroy(&actions);
        close(down[0]);
        close(up[1]);
        _requests = fdopen(down[1], "w");
        _answers = fdopen(up[0], "r");
    }
    ~Child() {
        if (_requests != nullptr) {
            std::fclose(_requests);
        }
        if (_answers != nullptr) {
            std::fclose(_answers);
        }
        if (_process > 0) {
            waitpid(_process, nullptr, 0);
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    /// The child's answer, "ok" or why not; empty when there is no child any more, of which why_gone() says why.
    std::string ask(const std::string& request) {
        if (_process <= 0 || _requests == nullptr || _answers == nullptr) {
            return "";
        }
        if (std::fputs((request + "\n").c_str(), _requests) < 0 || std::fflush(_requests) != 0) {
            return "";
        }
        std::array<char, 1024> line{};
        pollfd answer_comes{fileno(_answers), POLLIN, 0};
        int ready = -1;
        do {
            ready = poll(&answer_comes, 1, kPatienceMs);
        } while (ready < 0 && errno == EINTR);
        if (ready == 0) {
            _why_gone = "the other process hung";
            kill(_process, SIGKILL);
            return "";
        }
        if (std::fgets(line.data(), line.size(), _answers) == nullptr) {
            return "";
        }
        std::string answer(line.data());
        while (!answer.empty() && answer.back() == '\n') {
            answer.pop_back();
        }
        return answer;
    }

    [[nodiscard]] const std::string& why_gone() const noexcept { return _why_gone; }

  private:
    std::string _why_gone = "the other process crashed";
    pid_t _process = -1;
    std::FILE* _requests = nullptr;
    std::FILE* _answers = nullptr;
};

/// Copies kBytes in a stream of `device`.
gpu::Status copy_and_wait(gpu::Runtime& runtime, void* const to, const void* const from, const int device) {
    gpu::StreamHandle stream;
    gpu::Status status = runtime.create_stream(device, true, stream);
    if (status.ok()) {
        status = runtime.copy(to, from, kBytes, stream);
        if (status.ok()) {
            status = runtime.synchronize_stream(stream);
        }
        static_cast<void>(runtime.destroy_stream(stream));
    }
    return status;
}

/// Memory of a device with its content, and the handle of it.
struct Offered {
    void* memory = nullptr;
    gpu::IpcMemoryHandle handle;
    std::size_t offset = 0;
    std::string why_not;
};

Offered offer(gpu::Runtime& runtime, const int device) {
    Offered offered;
    gpu::Status status = runtime.allocate(device, kBytes, offered.memory);
    if (status.ok()) {
        std::array<unsigned char, kBytes> bytes{};
        for (std::size_t i = 0; i < kBytes; ++i) {
            bytes[i] = content(device, i);
        }
        status = copy_and_wait(runtime, offered.memory, bytes.data(), device);
    }
    if (status.ok()) {
        status = runtime.ipc_export(offered.memory, offered.handle, offered.offset);
    }
    if (!status.ok()) {
        offered.why_not = "exporting: " + status.message();
    }
    return offered;
}

std::string read_from(gpu::Runtime& runtime, const int owner, const int device, const gpu::IpcMemoryHandle& handle,
                      const std::size_t offset) {
    void* mapping = nullptr;
    gpu::Status status = runtime.ipc_open(handle, device, mapping);
    if (!status.ok()) {
        return "opening: " + status.message();
    }
    std::array<unsigned char, kBytes> bytes{};
    status = copy_and_wait(runtime, bytes.data(), static_cast<std::byte*>(mapping) + offset, device);
    static_cast<void>(runtime.ipc_close(mapping));
    if (!status.ok()) {
        return "reading: " + status.message();
    }
    for (std::size_t i = 0; i < kBytes; ++i) {
        if (bytes[i] != content(owner, i)) {
            return "what was read is not what the other process wrote";
        }
    }
    return "ok";
}

}  // namespace

std::string hexadecimal(const std::span<const unsigned char> bytes) {
    std::string text;
    for (const unsigned char byte : bytes) {
        std::array<char, 3> digits{};
        std::snprintf(digits.data(), digits.size(), "%02x", byte);
        text += digits.data();
    }
    return text;
}

std::vector<IpcResult> try_ipc(gpu::Runtime& runtime, const std::vector<int>& devices) {
    // A child that has died is found out by what it does not answer.
    struct sigaction ignored = {};
    struct sigaction before = {};
    ignored.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignored, &before);
    std::vector<IpcResult> results;
    auto child = std::make_unique<Child>();
    for (const int owner : devices) {
        const Offered offered = offer(runtime, owner);
        for (const int device : devices) {
            IpcResult result{owner, device, false, offered.why_not};
            if (result.why_not.empty()) {
                std::ostringstream request;
                request << owner << ' ' << device << ' ' << offered.offset << ' ' << hexadecimal(offered.handle.bytes);
                const std::string answer = child->ask(request.str());
                result.works = answer == "ok";
                if (answer.empty()) {
                    result.why_not = child->why_gone();
                    child = std::make_unique<Child>();
                } else if (!result.works) {
                    result.why_not = answer;
                }
            }
            results.push_back(std::move(result));
        }
        if (offered.memory != nullptr) {
            static_cast<void>(runtime.free(offered.memory));
        }
    }
    child.reset();
    sigaction(SIGPIPE, &before, nullptr);
    return results;
}

int serve_ipc_requests(gpu::Runtime& runtime) {
    std::array<char, 1024> line{};
    while (std::fgets(line.data(), line.size(), stdin) != nullptr) {
        std::istringstream words(line.data());
        int owner = 0;
        int device = 0;
        std::size_t offset = 0;
        std::string text;
        gpu::IpcMemoryHandle handle;
        if (!(words >> owner >> device >> offset >> text) || !read_hexadecimal(text, handle)) {
            return 2;
        }
        std::puts(read_from(runtime, owner, device, handle, offset).c_str());
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace awaken::topology
