// SPDX-License-Identifier: Apache-2.0
#include "compute.h"

#include <algorithm>
#include <utility>

namespace ghost_exchange {

namespace {

class HostCompute : public Compute {
  public:
    explicit HostCompute(const Block& block) : _block(block) {}

    void blur(double* xnew, const double* x, const Region& region) override {
        const Index stride = _block.stride();
        for (Index j = region.jbegin; j < region.jend; ++j) {
            for (Index n = _block.at(j, region.ibegin); n < _block.at(j, region.iend); ++n) {
                xnew[n] = (x[n] + x[n - 1] + x[n + 1] + x[n - stride] + x[n + stride]) / 5.0;
            }
        }
    }

    /// Also where a GPU makes the rest of the step: there are few of these cells, and they are here already.
    void blur_frame(double* xnew, const double* x, const Region& inner) final {
        HostCompute::blur(xnew, x, {0, _block.isize, 0, inner.jbegin});
        HostCompute::blur(xnew, x, {0, _block.isize, inner.jend, _block.jsize});
        HostCompute::blur(xnew, x, {0, inner.ibegin, inner.jbegin, inner.jend});
        HostCompute::blur(xnew, x, {inner.iend, _block.isize, inner.jbegin, inner.jend});
    }

    void start_boundary(double*) override {}
    void finish_boundary(double* x) override {
        const Block& b = _block;
        for (Index j = 0; j < b.jsize; ++j) {
            for (Index k = 0; k < b.nhalo; ++k) {
                if (b.left == MPI_PROC_NULL) {
                    x[b.at(j, -1 - k)] = x[b.at(j, 0)];
                }
                if (b.right == MPI_PROC_NULL) {
                    x[b.at(j, b.isize + k)] = x[b.at(j, b.isize - 1)];
                }
            }
        }
        // Over the whole width: at an edge of the field the columns above have filled the ends of the row.
        for (Index k = 0; k < b.nhalo; ++k) {
            for (Index i = -b.nhalo; i < b.isize + b.nhalo; ++i) {
                if (b.bottom == MPI_PROC_NULL) {
                    x[b.at(-1 - k, i)] = x[b.at(0, i)];
                }
                if (b.top == MPI_PROC_NULL) {
                    x[b.at(b.jsize + k, i)] = x[b.at(b.jsize - 1, i)];
                }
            }
        }
    }

    void pack(double* left, double* right, const double* x) override {
        const Index first = _block.first_column_row();
        for (Index row = 0; row < _block.column_rows(); ++row) {
            const double* const from_left = x + _block.at(first + row, 0);
            const double* const from_right = x + _block.at(first + row, _block.isize - _block.nhalo);
            if (left != nullptr) {
                left = std::copy_n(from_left, _block.nhalo, left);
            }
            if (right != nullptr) {
                right = std::copy_n(from_right, _block.nhalo, right);
            }
        }
    }

    void unpack(double* x, const double* left, const double* right) override {
        const Index first = _block.first_column_row();
        const Index nhalo = _block.nhalo;
        for (Index row = 0; row < _block.column_rows(); ++row) {
            if (left != nullptr) {
                std::copy_n(left + row * nhalo, nhalo, x + _block.at(first + row, -nhalo));
            }
            if (right != nullptr) {
                std::copy_n(right + row * nhalo, nhalo, x + _block.at(first + row, _block.isize));
            }
        }
    }

    void fill(double* x, const double* u, const double* v, double outside) override {
        std::fill_n(x, _block.cells(), outside);
        for (Index j = 0; u != nullptr && j < _block.jsize; ++j) {
            for (Index i = 0; i < _block.isize; ++i) {
                x[_block.at(j, i)] = u[i] * v[j];
            }
        }
    }

    void wait() override {}
    void wait_for_blur() override {}

  protected:
    [[nodiscard]] const Block& block() const { return _block; }

  private:
    const Block _block;
};

class DeviceCompute final : public Compute {
  public:
    DeviceCompute(const Block& block, apps::Kernels& kernels, Beside beside) : _block(block), _kernels(kernels) {
        int least = 0;
        int greatest = 0;
        HIP_CHECK(hipDeviceGetStreamPriorityRange(&least, &greatest));
        HIP_CHECK(hipStreamCreateWithPriority(&_stream,
                                              beside == Beside::nothing ? hipStreamDefault : hipStreamNonBlocking,
                                              beside == Beside::kernels ? greatest : least));
    }
    ~DeviceCompute() override {
        for (const auto& [start, stop] : _timed) {
            HIP_CHECK(hipEventDestroy(start));
            HIP_CHECK(hipEventDestroy(stop));
        }
        HIP_CHECK(hipStreamDestroy(_stream));
    }

    void blur(double* xnew, const double* x, const Region& region) override {
        if (region.empty()) {
            return;
        }
        const Index origin = _block.at(0, 0);
        // Four rows and two columns for each thread, as the kernel has it. Wide and low blocks were the fastest on an
        // H200 wherever a region begins (82 to 85 % of the memory limit).
        constexpr dim3 threads(128, 1);
        constexpr Index rows_of_block = 4;
        constexpr Index columns_of_block = Index{2} * 128;
        constexpr Index most_blocks = 65535;
        const Index width = region.iend - region.ibegin;
        const Index height = region.jend - region.jbegin;
        const dim3 grid(static_cast<unsigned>((width + columns_of_block - 1) / columns_of_block),
                        static_cast<unsigned>(std::min((height + rows_of_block - 1) / rows_of_block, most_blocks)));
        const auto& [start, stop] = next_events();
        HIP_CHECK(hipEventRecord(start, _stream));
        _kernels.launch("ghost_blur", grid, threads, _stream, xnew + origin, x + origin, _block.stride(), region.ibegin,
                        region.iend, region.jbegin, region.jend);
        HIP_CHECK(hipEventRecord(stop, _stream));
        _blurred_cells += width * height;
    }

    void blur_frame(double* xnew, const double* x, const Region& inner) override {
        const Index origin = _block.at(0, 0);
        const Index inner_cells = (inner.iend - inner.ibegin) * (inner.jend - inner.jbegin);
        const Index frame_cells = _block.isize * _block.jsize - inner_cells;
        const auto& [start, stop] = next_events();
        HIP_CHECK(hipEventRecord(start, _stream));
        launch("ghost_blur_frame", frame_cells, xnew + origin, x + origin, _block.stride(), _block.isize, _block.jsize,
               inner.ibegin, inner.iend, inner.jbegin, inner.jend);
        HIP_CHECK(hipEventRecord(stop, _stream));
        _blurred_cells += frame_cells;
    }

    void start_boundary(double* x) override {
        const auto edge = [](int neighbour) { return neighbour == MPI_PROC_NULL ? 1 : 0; };
        const int left = edge(_block.left);
        const int right = edge(_block.right);
        const int bottom = edge(_block.bottom);
        const int top = edge(_block.top);
        const Index cells =
            (left + right) * _block.jsize * _block.nhalo + (bottom + top) * _block.nhalo * _block.stride();
        launch("ghost_boundary", cells, x + _block.at(0, 0), _block.stride(), _block.isize, _block.jsize, _block.nhalo,
               left, right, bottom, top);
    }
    void finish_boundary(double*) override { wait(); }

    void pack(double* left, double* right, const double* x) override {
        if (left == nullptr && right == nullptr) {
            return;
        }
        launch("ghost_pack", _block.column_cells(), left, right, x + _block.at(0, 0), _block.stride(), _block.isize,
               _block.first_column_row(), _block.column_rows(), _block.nhalo);
    }

    void unpack(double* x, const double* left, const double* right) override {
        if (left == nullptr && right == nullptr) {
            return;
        }
        launch("ghost_unpack", _block.column_cells(), x + _block.at(0, 0), left, right, _block.stride(), _block.isize,
               _block.first_column_row(), _block.column_rows(), _block.nhalo);
    }

    void fill(double* x, const double* u, const double* v, double outside) override {
        // A few rows and columns' worth: what they cost beside the array does not matter.
        const Array factors(Memory::device, _block.isize + _block.jsize);
        double* d_u = nullptr;
        double* d_v = nullptr;
        if (u != nullptr) {
            if (factors.data() == nullptr) {
                std::fprintf(stderr, "rank %d: initial values: %s\n", apps::rank_of_world(), factors.problem().c_str());
                apps::end_job();
            }
            d_u = factors.data();
            d_v = factors.data() + _block.isize;
            copy_from_host(Memory::device, d_u, u, _block.isize);
            copy_from_host(Memory::device, d_v, v, _block.jsize);
        }
        launch("ghost_fill", _block.cells(), x, static_cast<const double*>(d_u), static_cast<const double*>(d_v),
               _block.stride(), _block.isize, _block.jsize, _block.nhalo, outside);
        wait();
    }

    void wait() override { HIP_CHECK(hipStreamSynchronize(_stream)); }
    void wait_for_blur() override {
        if (_in_use > 0) {
            HIP_CHECK(hipEventSynchronize(_timed[_in_use - 1].second));
        }
    }

    KernelTime take_blur_time() override {
        KernelTime time = {0, static_cast<double>(std::exchange(_blurred_cells, 0))};
        for (std::size_t i = 0; i < _in_use; ++i) {
            float milliseconds = 0;
            HIP_CHECK(hipEventElapsedTime(&milliseconds, _timed[i].first, _timed[i].second));
            time.seconds += milliseconds * 1e-3;
        }
        _in_use = 0;
        return time;
    }

    [[nodiscard]] hipStream_t stream() const { return _stream; }

  private:
    using Events = std::pair<hipEvent_t, hipEvent_t>;

    /// One thread for each cell, in one direction; further cells are theirs in turn.
    template <class... Arguments>
    void launch(const char* kernel, Index cells, Arguments... arguments) {
        if (cells == 0) {
            return;
        }
        constexpr unsigned threads = 256;
        constexpr Index most_blocks = 1 << 16;
        const auto blocks = static_cast<unsigned>(std::min((cells + threads - 1) / threads, most_blocks));
        _kernels.launch(kernel, dim3(blocks), dim3(threads), _stream, arguments...);
    }

    /// A pair of events for one more step. There are as many as steps between two calls of take_blur_time().
    const Events& next_events() {
        if (_in_use == _timed.size()) {
            Events events = {nullptr, nullptr};
            HIP_CHECK(hipEventCreate(&events.first));
            HIP_CHECK(hipEventCreate(&events.second));
            _timed.push_back(events);
        }
        return _timed[_in_use++];
    }

    const Block _block;
    apps::Kernels& _kernels;
    hipStream_t _stream = nullptr;
    std::vector<Events> _timed;
    std::size_t _in_use = 0;
    Index _blurred_cells = 0;
};

class StagedCompute final : public HostCompute {
  public:
    StagedCompute(const Block& block, apps::Kernels& kernels)
        : HostCompute(block),
          _device(block, kernels, Beside::exchange),
          _x(Memory::device, block.cells()),
          _xnew(Memory::device, block.cells()) {}

    [[nodiscard]] const std::string& problem() const { return !_x.problem().empty() ? _x.problem() : _xnew.problem(); }

    void blur(double* xnew, const double* x, const Region& region) override {
        if (region.empty()) {
            return;
        }
        // The region's rows and one more on each side. What else the halo has may be arriving just now.
        const Index begin = block().at(region.jbegin - 1, -block().nhalo);
        const Index end = block().at(region.jend + 1, -block().nhalo);
        copy_from_host(Memory::device, _x.data() + begin, x + begin, end - begin);
        _device.blur(_xnew.data(), _x.data(), region);
        _device.wait();
        // Only the region: the halo of xnew is the host's business.
        const std::size_t pitch = static_cast<std::size_t>(block().stride()) * sizeof(double);
        const Index first = block().at(region.jbegin, region.ibegin);
        HIP_CHECK(hipMemcpy2D(xnew + first, pitch, _xnew.data() + first, pitch,
                              static_cast<std::size_t>(region.iend - region.ibegin) * sizeof(double),
                              static_cast<std::size_t>(region.jend - region.jbegin), hipMemcpyDeviceToHost));
    }

    /// Not of the frame, which the CPU makes.
    KernelTime take_blur_time() override { return _device.take_blur_time(); }

  private:
    DeviceCompute _device;
    Array _x;
    Array _xnew;
};

}  // namespace

std::unique_ptr<Compute> compute_on_host(const Block& block) {
    return std::make_unique<HostCompute>(block);
}

std::unique_ptr<Compute> compute_on_device(const Block& block, apps::Kernels& kernels, Beside beside) {
    return std::make_unique<DeviceCompute>(block, kernels, beside);
}

std::unique_ptr<Compute> compute_staged(const Block& block, apps::Kernels& kernels, std::string& problem) {
    auto compute = std::make_unique<StagedCompute>(block, kernels);
    problem = compute->problem();
    return compute;
}

hipStream_t stream_of(const Compute& compute) {
    return dynamic_cast<const DeviceCompute&>(compute).stream();
}

}  // namespace ghost_exchange
