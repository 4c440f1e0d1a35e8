// SPDX-License-Identifier: Apache-2.0
// Work of a contender that is done again and again: in a graph, where the contender is replayed.
#pragma once

#include <functional>
#include <utility>

#include "base/error.h"
#include "gpu/gpu.h"
#include "mpi/benchmark.h"

namespace awaken::bench {

/// Throws Error.
inline void require(const gpu::Status& status) {
    if (!status.ok()) {
        throw Error("the GPU runtime refused: " + status.message(), "see that the GPU driver works");
    }
}

class Replay {
  public:
    /// `work` queues in the contender's stream.
    Replay(const Environment& environment, const Communication& with, std::function<void()> work)
        : _gpu(environment.gpu), _stream{with.stream(), environment.device}, _work(std::move(work)) {
        if (!with.is_replayed()) {
            return;
        }
        require(_gpu.begin_capture(_stream));
        try {
            _work();
        } catch (...) {
            static_cast<void>(_gpu.end_capture(_stream, _graph));
            destroy();
            throw;
        }
        require(_gpu.end_capture(_stream, _graph));
    }
    ~Replay() { destroy(); }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

    void launch() const {
        if (_graph.value != nullptr) {
            require(_gpu.launch_graph(_graph, _stream));
        } else {
            _work();
        }
    }

  private:
    void destroy() noexcept {
        if (_graph.value != nullptr) {
            static_cast<void>(_gpu.destroy_graph(_graph));
        }
    }

    gpu::Runtime& _gpu;
    const gpu::StreamHandle _stream;
    const std::function<void()> _work;
    gpu::GraphHandle _graph;
};

}  // namespace awaken::bench
