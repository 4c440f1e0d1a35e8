// SPDX-License-Identifier: Apache-2.0
// What a program does by hand whose MPI takes no device memory: the window is over a host image. The target copies its
// memory into the image before others may read it, and back after they have written; the origin copies what it puts out
// of the GPU, and what it has got into it once the epoch is over.
#include "mpi/staged_window.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "mpi/engine.h"
#include "mpi/mpi_window.h"

namespace awaken::bench {
namespace {

bool reads_target(const OneSided operation) noexcept {
    return operation != OneSided::put;
}

bool writes_target(const OneSided operation) noexcept {
    return operation != OneSided::get;
}

class StagedWindow final : public Window {
  public:
    StagedWindow(const MpiFunctions& mpi, HostImages& images, const WindowRequest& request)
        : _images(images), _memory(request.base), _bytes(request.bytes), _operation(request.operation) {
        std::optional<Error> problem;
        void* const image = images.image_of(request.base);
        if (image != request.base && request.is_target && !request.target_takes_part) {
            problem.emplace("staged by hand, data get into and out of a target's GPU only when the target copies them",
                            "use -s fence or -s pscw, or leave staged out of --compare");
        }
        agree_to_run(request.communicator, problem);
        WindowRequest of_image = request;
        of_image.base = image;
        _inner = open_mpi_window(mpi, of_image);
        if (request.form == WindowForm::allocate) {
            _memory = _inner->base();
        }
    }

    [[nodiscard]] void* base() const noexcept override { return _memory; }

    void close() override { _inner->close(); }

    void issue(const WindowCall& call) override {
        WindowCall moved = call;
        const std::size_t bytes = bytes_of(call);
        if (call.origin != nullptr) {
            moved.origin = _images.fetch(call.origin, bytes);
        }
        if (call.compare != nullptr) {
            moved.compare = _images.fetch(call.compare, bytes);
        }
        if (call.result != nullptr) {
            moved.result = _images.image_of(call.result);
            if (moved.result != call.result) {
                _owed.push_back({call.result, moved.result, bytes});
            }
        }
        _inner->issue(moved);
    }

    void fence(const Exposure exposure) override {
        if (exposure == Exposure::begins) {
            before_exposure();
        }
        _inner->fence(exposure);
        if (exposure == Exposure::ends) {
            after_exposure();
        }
        deliver_results();
    }
    void post() override {
        before_exposure();
        _inner->post();
    }
    void start() override { _inner->start(); }
    void complete() override {
        _inner->complete();
        deliver_results();
    }
    void wait() override {
        _inner->wait();
        after_exposure();
    }
    void lock(const int target, const LockKind kind) override { _inner->lock(target, kind); }
    void unlock(const int target) override {
        _inner->unlock(target);
        deliver_results();
    }
    void lock_all() override { _inner->lock_all(); }
    void unlock_all() override {
        _inner->unlock_all();
        deliver_results();
    }
    void flush(const int target) override {
        _inner->flush(target);
        deliver_results();
    }
    void flush_local(const int target) override {
        _inner->flush_local(target);
        deliver_results();
    }

  private:
    [[nodiscard]] static std::size_t bytes_of(const WindowCall& call) {
        int size = 0;
        check_mpi(library_functions().Type_size(call.type, &size), "MPI_Type_size");
        return static_cast<std::size_t>(call.count) * static_cast<std::size_t>(size);
    }

    void before_exposure() {
        if (reads_target(_operation)) {
            _images.fetch(_memory, _bytes);
        }
    }

    void after_exposure() {
        if (writes_target(_operation)) {
            _images.deliver(_memory, _images.image_of(_memory), _bytes);
        }
    }

    void deliver_results() {
        if (_owed.empty()) {
            return;
        }
        for (const ImageCopy& result : _owed) {
            _images.queue(result);
        }
        _images.synchronize();
        _owed.clear();
    }

    HostImages& _images;
    std::unique_ptr<Window> _inner;
    void* _memory;  ///< as the program has it
    const std::size_t _bytes;
    const OneSided _operation;
    std::vector<ImageCopy> _owed;  ///< what has been fetched into images
};

}  // namespace

std::unique_ptr<Window> open_staged_window(const MpiFunctions& mpi, HostImages& images, const WindowRequest& request) {
    return std::make_unique<StagedWindow>(mpi, images, request);
}

}  // namespace awaken::bench
