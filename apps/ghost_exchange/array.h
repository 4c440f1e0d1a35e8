// SPDX-License-Identifier: Apache-2.0
// An array of doubles in one kind of memory.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "options.h"

namespace ghost_exchange {

class Array {
  public:
    Array() = default;
    /// Allocates, and touches nothing. Where there is no room, data() is null and problem() says what happened.
    Array(Memory memory, Index cells);
    ~Array();
    Array(Array&& other) noexcept { swap(other); }
    Array& operator=(Array&& other) noexcept {
        swap(other);
        return *this;
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    [[nodiscard]] double* data() const { return _data; }
    [[nodiscard]] std::size_t bytes() const { return _bytes; }
    [[nodiscard]] const std::string& problem() const { return _problem; }

    void swap(Array& other) noexcept {
        std::swap(_memory, other._memory);
        std::swap(_data, other._data);
        std::swap(_bytes, other._bytes);
        std::swap(_problem, other._problem);
    }

  private:
    Memory _memory = Memory::host;
    double* _data = nullptr;
    std::size_t _bytes = 0;
    std::string _problem;
};

/// Copies between the host's memory and memory of that kind. All work on either must be over.
void copy_from_host(Memory memory, double* target, const double* source, Index cells);
void copy_to_host(Memory memory, double* target, const double* source, Index cells);

/// Copies rows of `cells` cells each, which begin `target_stride` and `source_stride` cells apart, between an array of
/// that memory and one of the host's: by the GPU where kernels reach that memory, otherwise by the CPU. All work on
/// either must be over; a copy to the GPU may still be on its way afterwards.
void copy_rows(Memory memory, double* target, Index target_stride, const double* source, Index source_stride,
               Index cells, Index rows);

/// Why this rank's device cannot take memory of that kind, and how to go on; empty where it can.
[[nodiscard]] std::string problem_of(Memory memory, Exchange exchange, int device);

}  // namespace ghost_exchange
