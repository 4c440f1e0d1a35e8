// SPDX-License-Identifier: Apache-2.0
#include "array.h"

#include <cstdlib>
#include <cstring>

#include "device.h"

namespace ghost_exchange {

namespace {

bool attribute(hipDeviceAttribute_t name, int device) {
    int value = 0;
    // A runtime that does not know the attribute does not have what it asks for.
    if (hipDeviceGetAttribute(&value, name, device) != hipSuccess) {
        (void)hipGetLastError();
    }
    return value != 0;
}

}  // namespace

Array::Array(Memory memory, Index cells) : _memory(memory), _bytes(static_cast<std::size_t>(cells) * sizeof(double)) {
    hipError_t error = hipSuccess;
    switch (memory) {
        case Memory::host:
        case Memory::staged:
        case Memory::system:
            _data = static_cast<double*>(std::malloc(_bytes));
            if (_data == nullptr) {
                _problem = "malloc found no room";
            }
            return;
        case Memory::managed:
            error = hipMallocManaged(&_data, _bytes);
            break;
        case Memory::pinned:
            error = hipHostMalloc(&_data, _bytes);
            break;
        case Memory::device:
            error = hipMalloc(&_data, _bytes);
            break;
    }
    if (error == hipSuccess) {
        return;
    }
    // A failed allocation must not be taken for the error of a later call.
    (void)hipGetLastError();
    _data = nullptr;
    _problem = hipGetErrorString(error);
}

Array::~Array() {
    if (_data == nullptr) {
        return;
    }
    switch (_memory) {
        case Memory::host:
        case Memory::staged:
        case Memory::system:
            std::free(_data);
            break;
        case Memory::pinned:
            HIP_CHECK(hipHostFree(_data));
            break;
        case Memory::managed:
        case Memory::device:
            HIP_CHECK(hipFree(_data));
            break;
    }
}

void copy_from_host(Memory memory, double* target, const double* source, Index cells) {
    const std::size_t bytes = static_cast<std::size_t>(cells) * sizeof(double);
    if (memory != Memory::device) {
        std::memcpy(target, source, bytes);
        return;
    }
    HIP_CHECK(hipMemcpy(target, source, bytes, hipMemcpyHostToDevice));
    // From pageable memory the copy may still be on its way to the device.
    HIP_CHECK(hipDeviceSynchronize());
}

void copy_to_host(Memory memory, double* target, const double* source, Index cells) {
    const std::size_t bytes = static_cast<std::size_t>(cells) * sizeof(double);
    if (memory != Memory::device) {
        std::memcpy(target, source, bytes);
        return;
    }
    HIP_CHECK(hipMemcpy(target, source, bytes, hipMemcpyDeviceToHost));
}

void copy_rows(Memory memory, double* target, Index target_stride, const double* source, Index source_stride,
               Index cells, Index rows) {
    const auto bytes = [](Index count) { return static_cast<std::size_t>(count) * sizeof(double); };
    if (!kernels_reach(memory)) {
        for (Index row = 0; row < rows; ++row) {
            std::memcpy(target + row * target_stride, source + row * source_stride, bytes(cells));
        }
    } else if (rows == 1) {
        HIP_CHECK(hipMemcpy(target, source, bytes(cells), hipMemcpyDefault));
    } else {
        HIP_CHECK(hipMemcpy2D(target, bytes(target_stride), source, bytes(source_stride), bytes(cells),
                              static_cast<std::size_t>(rows), hipMemcpyDefault));
    }
}

std::string problem_of(Memory memory, Exchange exchange, int device) {
    if (memory == Memory::system && !attribute(hipDeviceAttributePageableMemoryAccess, device)) {
        return "--memory system: kernels on this GPU cannot use memory from malloc (pageableMemoryAccess is 0); on AMD "
               "set HSA_XNACK=1, on NVIDIA it takes HMM or Grace; otherwise use --memory managed";
    }
    if (memory == Memory::managed && !attribute(hipDeviceAttributeManagedMemory, device)) {
        return "--memory managed: this GPU has no managed memory; use --memory device or pinned";
    }
    if (memory == Memory::managed && exchange == Exchange::overlap &&
        !attribute(hipDeviceAttributeConcurrentManagedAccess, device)) {
        return "--exchange overlap with --memory managed: on this GPU the CPU must not touch managed memory while a "
               "kernel runs (concurrentManagedAccess is 0); use --memory device";
    }
    return {};
}

}  // namespace ghost_exchange
