// SPDX-License-Identifier: Apache-2.0
// The GPU: one stream computes, another communicates, and events stand between them and the host.
#include <algorithm>
#include <vector>

#include "device.h"
#include "gpu_blas.h"
#include "kernels.h"
#include "machine.h"
#include "ranges.h"
#include "worker.h"

extern const char* const xtx_kernels_text;

namespace xtx {

namespace {

/// Opens a range while the GPU works on a block, for the tools that show ranges: the host's own thread is elsewhere
/// then. Its events let the thread sleep; those that the host waits for must not.
class ProductRanges {
  public:
    explicit ProductRanges(int device) {
        _thread.submit([device] { HIP_CHECK(hipSetDevice(device)); });
    }
    ~ProductRanges() {
        _thread.wait_for_all();
        for (const Marks& marks : _marks) {
            HIP_CHECK(hipEventDestroy(marks.begin));
            HIP_CHECK(hipEventDestroy(marks.end));
        }
    }
    ProductRanges(const ProductRanges&) = delete;
    ProductRanges& operator=(const ProductRanges&) = delete;

    void prepare(std::size_t blocks) {
        while (_marks.size() < blocks) {
            Marks marks;
            HIP_CHECK(hipEventCreateWithFlags(&marks.begin, hipEventBlockingSync | hipEventDisableTiming));
            HIP_CHECK(hipEventCreateWithFlags(&marks.end, hipEventBlockingSync | hipEventDisableTiming));
            _marks.push_back(marks);
        }
    }
    /// The thread may be behind; an event must not be recorded anew before it has been waited for.
    void begin(std::size_t k, hipStream_t stream) {
        _thread.wait(_marks[k].task);
        HIP_CHECK(hipEventRecord(_marks[k].begin, stream));
    }
    void end(std::size_t k, hipStream_t stream) {
        HIP_CHECK(hipEventRecord(_marks[k].end, stream));
        _marks[k].task = _thread.submit([marks = _marks[k]] {
            HIP_CHECK(hipEventSynchronize(marks.begin));
            const apps::Range range("gemm");
            HIP_CHECK(hipEventSynchronize(marks.end));
        });
    }

  private:
    struct Marks {
        hipEvent_t begin = nullptr;
        hipEvent_t end = nullptr;
        std::size_t task = 0;
    };
    std::vector<Marks> _marks;
    Worker _thread;
};

class GpuMachine : public Machine {
  public:
    GpuMachine(std::unique_ptr<GpuBlas> blas, bool shows_products)
        : _blas(std::move(blas)), _kernels("xtx", xtx_kernels_text) {
        int least = 0;
        int greatest = 0;
        HIP_CHECK(hipDeviceGetStreamPriorityRange(&least, &greatest));
        HIP_CHECK(hipStreamCreateWithPriority(&_computing, hipStreamNonBlocking, least));
        // A reduction's few blocks must not wait until a product's many are through.
        HIP_CHECK(hipStreamCreateWithPriority(&_communicating, hipStreamNonBlocking, greatest));
        HIP_CHECK(hipEventCreateWithFlags(&_mark, hipEventDisableTiming));
        _blas->connect(_computing);
        int device = 0;
        int multiprocessors = 1;
        HIP_CHECK(hipGetDevice(&device));
        HIP_CHECK(hipDeviceGetAttribute(&multiprocessors, hipDeviceAttributeMultiprocessorCount, device));
        _most_blocks = static_cast<std::size_t>(multiprocessors) * 8;
        std::array<char, 256> name = {};
        HIP_CHECK(hipDeviceGetName(name.data(), static_cast<int>(name.size()), device));
        _title = _blas->name() + " on " + name.data();
        if (shows_products) {
            _ranges = std::make_unique<ProductRanges>(device);
        }
    }
    ~GpuMachine() override {
        _ranges.reset();
        for (const Marks& marks : _marks) {
            HIP_CHECK(hipEventDestroy(marks.begin));
            HIP_CHECK(hipEventDestroy(marks.end));
        }
        HIP_CHECK(hipEventDestroy(_mark));
        _blas.reset();
        HIP_CHECK(hipStreamDestroy(_computing));
        HIP_CHECK(hipStreamDestroy(_communicating));
    }
    GpuMachine(const GpuMachine&) = delete;
    GpuMachine& operator=(const GpuMachine&) = delete;

    std::string title() const override { return _title; }

    std::string refusal(const Problem& problem, long long rows) const override {
        if (_blas->takes_large_sizes() || std::max(problem.vectors, rows) <= INT_MAX) {
            return {};
        }
        return _blas->name() + " takes sizes up to 2147483647: use fewer --vectors, or more ranks";
    }

    void* allocate(std::size_t bytes) override {
        void* memory = nullptr;
        return known(hipMalloc(&memory, bytes)) ? memory : nullptr;
    }
    void free(void* memory) override { HIP_CHECK(hipFree(memory)); }
    void* allocate_on_host(std::size_t bytes) override {
        void* memory = nullptr;
        return known(hipHostMalloc(&memory, bytes, hipHostMallocDefault)) ? memory : nullptr;
    }
    void free_on_host(void* memory) override { HIP_CHECK(hipHostFree(memory)); }
    std::size_t free_bytes() const override {
        std::size_t free_bytes = 0;
        std::size_t total_bytes = 0;
        HIP_CHECK(hipMemGetInfo(&free_bytes, &total_bytes));
        return free_bytes;
    }
    bool is_host() const override { return false; }

    void fill(double* X, std::size_t count, const Filling& filling) override {
        const unsigned long long numbers = count;
        if (filling.input == Input::random) {
            const unsigned long long first = filling.first;
            launch("xtx_fill_random", count, X, numbers, first);
        } else {
            launch("xtx_fill_constant", count, X, numbers, filling.even, filling.odd);
        }
    }
    void narrow(float* target, std::size_t count, const double* source, std::size_t source_count) override {
        const unsigned long long numbers = count;
        const unsigned long long source_numbers = source_count;
        launch("xtx_narrow", count, target, numbers, source, source_numbers);
    }
    void multiply(const Product& product) override { _blas->multiply(product); }
    void split(const Split& split) override {
        const unsigned long long height = split.height;
        const unsigned long long top = split.top;
        const unsigned long long columns = split.columns;
        launch("xtx_split", split.height * split.columns, split.diagonal, split.rest, split.block, height, top,
               columns);
    }

    void prepare(std::size_t blocks) override {
        while (_marks.size() < blocks) {
            Marks marks;
            HIP_CHECK(hipEventCreate(&marks.begin));
            HIP_CHECK(hipEventCreate(&marks.end));
            _marks.push_back(marks);
        }
        if (_ranges != nullptr) {
            _ranges->prepare(blocks);
        }
    }
    void begin_block(std::size_t k) override {
        if (_ranges != nullptr) {
            _ranges->begin(k, _computing);
        }
        HIP_CHECK(hipEventRecord(_marks[k].begin, _computing));
    }
    void end_block(std::size_t k) override {
        HIP_CHECK(hipEventRecord(_marks[k].end, _computing));
        if (_ranges != nullptr) {
            _ranges->end(k, _computing);
        }
    }
    void wait_for_block(std::size_t k) override { HIP_CHECK(hipEventSynchronize(_marks[k].end)); }
    double seconds_of_block(std::size_t k) override {
        float milliseconds = 0;
        HIP_CHECK(hipEventElapsedTime(&milliseconds, _marks[k].begin, _marks[k].end));
        return milliseconds * 1e-3;
    }
    void finish_computing() override { HIP_CHECK(hipStreamSynchronize(_computing)); }

    void copy_to_host(void* target, const void* source, std::size_t bytes) override {
        HIP_CHECK(hipMemcpyAsync(target, source, bytes, hipMemcpyDeviceToHost, _communicating));
    }
    void finish_copies() override { HIP_CHECK(hipStreamSynchronize(_communicating)); }
    void mark_communication() override { HIP_CHECK(hipEventRecord(_mark, _communicating)); }
    void wait_for_mark() override { HIP_CHECK(hipEventSynchronize(_mark)); }
    hipStream_t communication_stream() const override { return _communicating; }

  private:
    struct Marks {
        hipEvent_t begin = nullptr;
        hipEvent_t end = nullptr;
    };

    /// Whether an allocation succeeded. A failed one must not be taken for the error of a later call.
    static bool known(hipError_t error) {
        if (error != hipSuccess) {
            (void)hipGetLastError();
        }
        return error == hipSuccess;
    }

    template <class... Arguments>
    void launch(const char* kernel, std::size_t count, Arguments... arguments) {
        if (count == 0) {
            return;
        }
        constexpr std::size_t threads = 256;
        const std::size_t blocks = std::min((count + threads - 1) / threads, _most_blocks);
        _kernels.launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), _computing, arguments...);
    }

    std::unique_ptr<GpuBlas> _blas;
    apps::Kernels _kernels;
    std::string _title;
    hipStream_t _computing = nullptr;
    hipStream_t _communicating = nullptr;
    hipEvent_t _mark = nullptr;
    std::size_t _most_blocks = 1;
    std::vector<Marks> _marks;
    std::unique_ptr<ProductRanges> _ranges;  ///< null where nobody wants to see them
};

}  // namespace

std::unique_ptr<Machine> make_gpu_machine(const std::string& program, bool shows_products, std::string& why_not) {
    int count = 0;
    const hipError_t error = hipGetDeviceCount(&count);
    std::string problem;
    if (error != hipSuccess || count == 0) {
        problem = error != hipSuccess ? hipGetErrorString(error)
                                      : "no GPU is visible to rank " + std::to_string(apps::rank_of_world());
    }
    why_not = apps::first_problem(problem);
    if (!why_not.empty()) {
        return nullptr;
    }
    apps::select_device(program);
    auto blas = std::make_unique<GpuBlas>();
    why_not = apps::first_problem(blas->problem());
    if (!why_not.empty()) {
        return nullptr;
    }
    return std::make_unique<GpuMachine>(std::move(blas), shows_products);
}

}  // namespace xtx
