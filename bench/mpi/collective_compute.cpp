// SPDX-License-Identifier: Apache-2.0
#include "mpi/collective_compute.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "gpu/kernels/texts.h"
#include "mpi/clock.h"

namespace awaken::bench {
namespace {

/// -t of nonblocking collectives: the number of MPI_Test calls.
std::size_t number_of_tests(const Options& options) {
    if (!options.test_calls) {
        return 0;
    }
    const std::string& text = *options.test_calls;
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) {
        throw Error("-t " + text + " is not a number of MPI_Test calls", "give a whole number, such as -t 100");
    }
    return number;
}

}  // namespace

/// A kernel whose length in time can be chosen.
class OverlapCompute::Gpu {
  public:
    Gpu(gpu::Runtime& runtime, int device, std::size_t elements) : _runtime(runtime), _elements(elements) {
        try {
            prepare(device);
        } catch (...) {
            release();
            throw;
        }
    }
    ~Gpu() { release(); }
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    /// Chooses the number of rounds so that the kernel takes at least so long.
    void set_duration(double seconds) {
        // The first launch loads the code.
        time_kernel(1);
        unsigned long long rounds = 1;
        double taken = time_kernel(rounds);
        while (taken < seconds) {
            // Towards the goal by the time measured, but at most tenfold: short kernels are all launch.
            const double factor = std::clamp(1.1 * seconds / taken, 1.5, 10.0);
            rounds = static_cast<unsigned long long>(std::ceil(static_cast<double>(rounds) * factor));
            taken = time_kernel(rounds);
        }
        _rounds = rounds;
    }

    void start() { launch(_rounds); }
    void wait() { require(_runtime.synchronize_stream(_stream)); }

  private:
    void prepare(int device) {
        std::string log;
        const gpu::Status loaded =
            _runtime.load_kernels(device, "compute.h", gpu::kernels::compute_source, _module, log);
        if (!loaded.ok()) {
            throw Error(
                "the kernel of -r gpu cannot be compiled (" + loaded.message() + (log.empty() ? "" : "; " + log) + ")",
                "use -d cuda or -d rocm where the toolkit's run-time compiler (NVRTC or HIPRTC) is installed, or "
                "compute on the CPU: -r cpu");
        }
        require(_runtime.find_kernel(_module, "awaken_compute", _kernel));
        require(_runtime.create_stream(device, false, _stream));
        const std::size_t bytes = _elements * sizeof(float);
        require(_runtime.allocate(device, bytes, _sums));
        require(_runtime.allocate(device, bytes, _terms));
        require(_runtime.fill(_sums, 0, bytes, _stream));
        require(_runtime.fill(_terms, 0, bytes, _stream));
        wait();
    }

    void release() noexcept {
        // Nothing can be done about failures here.
        if (_sums != nullptr) {
            static_cast<void>(_runtime.free(_sums));
        }
        if (_terms != nullptr) {
            static_cast<void>(_runtime.free(_terms));
        }
        if (_stream.value != nullptr) {
            static_cast<void>(_runtime.destroy_stream(_stream));
        }
        if (_module.value != nullptr) {
            static_cast<void>(_runtime.unload_kernels(_module));
        }
    }

    static void require(const gpu::Status& status) {
        if (!status.ok()) {
            throw Error("computing on the GPU failed (" + status.message() + ")",
                        "look at the GPU with its vendor's tool, or compute on the CPU: -r cpu");
        }
    }

    void launch(unsigned long long rounds) {
        constexpr unsigned kBlock = 256;
        float factor = 0.5F;
        unsigned long long elements = _elements;
        void* arguments[] = {static_cast<void*>(&_sums), static_cast<void*>(&_terms), &factor, &elements, &rounds};
        const auto blocks = static_cast<unsigned>((_elements + kBlock - 1) / kBlock);
        require(_runtime.launch(_kernel, {blocks, 1, 1}, {kBlock, 1, 1}, 0, _stream, arguments));
    }

    double time_kernel(unsigned long long rounds) {
        const double start = now();
        launch(rounds);
        wait();
        return now() - start;
    }

    gpu::Runtime& _runtime;
    std::size_t _elements;
    unsigned long long _rounds = 1;
    gpu::ModuleHandle _module;
    gpu::KernelHandle _kernel;
    gpu::StreamHandle _stream;
    void* _sums = nullptr;
    void* _terms = nullptr;
};

OverlapCompute::OverlapCompute(const Environment& environment)
    : _tests(number_of_tests(environment.options)), _on_cpu(environment.options.compute_on_cpu) {
    for (std::size_t i = 0; i < kSide; ++i) {
        for (std::size_t j = 0; j < kSide; ++j) {
            _matrix[i][j] = 1.0F / static_cast<float>(1 + i + j);
        }
    }
    if (!environment.options.compute_on_gpu) {
        return;
    }
    if (!environment.gpu.is_present() || environment.device < 0) {
        throw Error("-r gpu or both computes on a GPU, and this run uses none",
                    "add -d cuda or -d rocm, or compute on the CPU: -r cpu");
    }
    const auto elements = static_cast<std::size_t>(std::max(environment.options.array_size, 1));
    _gpu = std::make_unique<Gpu>(environment.gpu, environment.device, elements);
}

OverlapCompute::~OverlapCompute() = default;

void OverlapCompute::set_duration(double seconds) {
    _duration = seconds;
    if (_gpu) {
        _gpu->set_duration(seconds);
    }
}

double OverlapCompute::run(Communication& with, Operations& operations) {
    double testing = 0;
    const auto test = [&] {
        const double start = now();
        for (std::size_t index = 0; index < operations.requests.size(); ++index) {
            static_cast<void>(with.test(operations, index));
        }
        testing += now() - start;
    };
    // The order is OMB's: without a GPU each part of the computation comes before its test, with one after it.
    if (_gpu) {
        _gpu->start();
    }
    if (_tests == 0) {
        if (_on_cpu) {
            compute_on_host(_duration);
        }
    } else {
        const double part = _duration / static_cast<double>(_tests);
        for (std::size_t i = 0; i < _tests; ++i) {
            if (_gpu) {
                test();
            }
            if (_on_cpu) {
                compute_on_host(part);
            }
            if (!_gpu) {
                test();
            }
        }
    }
    if (_gpu) {
        _gpu->wait();
    }
    return testing;
}

void OverlapCompute::compute_on_host(double seconds) {
    // Time is what the arithmetic took, without the clock's own: as OMB measures it.
    double elapsed = 0;
    while (elapsed < seconds) {
        const double start = now();
        for (std::size_t i = 0; i < kSide; ++i) {
            float sum = _vector[i];
            for (std::size_t j = 0; j < kSide; ++j) {
                sum = 0.5F * sum + _matrix[i][j] * _matrix[j][i];
            }
            _vector[i] = sum;
        }
        _result = _vector[kSide / 2];
        elapsed += now() - start;
    }
}

}  // namespace awaken::bench
