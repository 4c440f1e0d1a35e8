// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_runs.h"

#include <fcntl.h>

#include <new>
#include <utility>

#include "base/fnv1a.h"

namespace awaken::gpu {

using cuda_abi::Result;

namespace {

constexpr Status kNoMemory{kUnsupported, "cuMemMap", "out of host memory"};

Status lacks_mappings(const char* const call) noexcept {
    return {kUnsupported, call, "the driver has no such function"};
}

}  // namespace

Status CudaRuns::find(const void* const pointer, const std::size_t bytes, MappedRun& run) const noexcept {
    MappedRun found;
    Fnv1a ids;
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    for (std::uintptr_t at = begin; at < begin + bytes || at == begin;) {
        const auto* const address = reinterpret_cast<const void*>(at);
        void* base = nullptr;
        std::size_t size = 0;
        unsigned long long id = 0;
        constexpr cuda_abi::PointerAttribute kId = cuda_abi::kBufferIdAttribute;
        void* value = &id;
        Result code = _driver.memory_range(&base, &size, address);
        if (code == cuda_abi::kSuccess) {
            code = _driver.pointer_attributes(1, &kId, &value, address);
        }
        if (code != cuda_abi::kSuccess) {
            return _driver.outcome(code, _driver.memory_range.name);
        }
        ids.add_word(id);
        if (found.mappings++ == 0) {
            found.base = reinterpret_cast<std::uintptr_t>(base);
        }
        found.size += size;
        found.id = found.mappings == 1 ? id : ids.value();
        at = reinterpret_cast<std::uintptr_t>(base) + size;
    }
    run = found;
    return {};
}

Status CudaRuns::share(const MappedRun& run, IpcMemoryHandle& handle) noexcept {
    if (!_driver.physical_export || !_driver.physical_retain || !_driver.physical_release) {
        return lacks_mappings("cuMemExportToShareableHandle");
    }
    if (run.mappings > SharedDescriptors::most()) {
        return {kUnsupported, "export_run", "it needs more descriptors than a process may hand out"};
    }
    constexpr Status kNoneLeft{kBusy, "export_run", "all descriptors that a process may hand out are in use"};
    if (!_shared.make_room(run.mappings)) {
        return kNoneLeft;
    }
    std::vector<SharedPart> parts;
    for (std::uintptr_t at = run.base; at < run.base + run.size;) {
        SharedPart part;
        if (const Status status = share_mapping(reinterpret_cast<const void*>(at), part); !status.ok()) {
            return status;
        }
        at += part.bytes;
        try {
            parts.push_back(std::move(part));
        } catch (const std::bad_alloc&) {
            return kNoMemory;
        }
    }
    return _shared.publish(std::move(parts), handle) ? Status{} : kNoneLeft;
}

/// The descriptor of one mapping, which begins at `address`.
Status CudaRuns::share_mapping(const void* const address, SharedPart& part) const noexcept {
    void* base = nullptr;
    std::size_t size = 0;
    if (const Result code = _driver.memory_range(&base, &size, address)) {
        return _driver.outcome(code, _driver.memory_range.name);
    }
    cuda_abi::MemHandle physical = 0;
    if (const Result code = _driver.physical_retain(&physical, base)) {
        return _driver.outcome(code, _driver.physical_retain.name);
    }
    int file = -1;
    const Result code = _driver.physical_export(&file, physical, cuda_abi::kPosixFileDescriptor, 0);
    static_cast<void>(_driver.physical_release(physical));
    if (code == cuda_abi::kSuccess) {
        static_cast<void>(::fcntl(file, F_SETFD, FD_CLOEXEC));
        part = {Descriptor(file), size};
    }
    return _driver.outcome(code, _driver.physical_export.name);
}

Status CudaRuns::open(const IpcMemoryHandle& handle, const int device, void*& base) noexcept {
    if (!_driver.address_reserve || !_driver.address_free || !_driver.physical_import || !_driver.physical_release ||
        !_driver.memory_map || !_driver.memory_unmap || !_driver.set_access) {
        return lacks_mappings("cuMemMap");
    }
    std::vector<SharedPart> parts;
    if (const Status status = SharedDescriptors::take(handle, parts); !status.ok()) {
        return status;
    }
    Opened run;
    for (const SharedPart& part : parts) {
        run.bytes += part.bytes;
    }
    void* address = nullptr;
    if (const Result code = _driver.address_reserve(&address, run.bytes, 0, nullptr, 0)) {
        return _driver.outcome(code, _driver.address_reserve.name);
    }
    Status status = map_parts(static_cast<std::byte*>(address), parts, run);
    const cuda_abi::MemAccess access{cuda_abi::kLocationIsDevice, device, cuda_abi::kReadAndWrite};
    if (status.ok()) {
        status = _driver.outcome(_driver.set_access(address, run.bytes, &access, 1), _driver.set_access.name);
    }
    if (status.ok()) {
        try {
            const std::scoped_lock lock(_mutex);
            _opened.emplace(address, run);
            base = address;
            return {};
        } catch (const std::bad_alloc&) {
            status = kNoMemory;
        }
    }
    unmap(address, run);
    return status;
}

Status CudaRuns::map_parts(std::byte* const base, const std::vector<SharedPart>& parts, Opened& run) const noexcept {
    std::byte* at = base;
    for (const SharedPart& part : parts) {
        cuda_abi::MemHandle physical = 0;
        // The descriptor is passed as if it were the pointer.
        const auto file = reinterpret_cast<void*>(static_cast<std::uintptr_t>(part.file.get()));
        if (const Result code = _driver.physical_import(&physical, file, cuda_abi::kPosixFileDescriptor)) {
            return _driver.outcome(code, _driver.physical_import.name);
        }
        const Result code = _driver.memory_map(at, part.bytes, 0, physical, 0);
        static_cast<void>(_driver.physical_release(physical));  // the mapping keeps the memory
        if (code != cuda_abi::kSuccess) {
            return _driver.outcome(code, _driver.memory_map.name);
        }
        try {
            run.parts.push_back(part.bytes);
        } catch (const std::bad_alloc&) {
            static_cast<void>(_driver.memory_unmap(at, part.bytes));
            return kNoMemory;
        }
        at += part.bytes;
    }
    return {};
}

std::optional<CudaRuns::Opened> CudaRuns::take(const void* const base) noexcept {
    const std::scoped_lock lock(_mutex);
    auto node = _opened.extract(base);
    return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
}

void CudaRuns::unmap(void* const base, const Opened& run) const noexcept {
    auto* at = static_cast<std::byte*>(base);
    for (const std::size_t bytes : run.parts) {
        static_cast<void>(_driver.memory_unmap(at, bytes));
        at += bytes;
    }
    static_cast<void>(_driver.address_free(base, run.bytes));
}

}  // namespace awaken::gpu
