// One enumeration of errors for all front ends: the CUDA driver's numbers, which the CUDA runtime (since 10.1) and HIP
// share. Where a vendor answers another number in some situation, its front end translates.
#pragma once

namespace awaken::emulator {

enum class Error : int {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    deinitialized = 4,
    invalid_device_pointer = 17,
    invalid_copy_direction = 21,
    no_device = 100,
    invalid_device = 101,
    invalid_image = 200,
    invalid_context = 201,
    map_failed = 205,
    no_binary_for_device = 209,
    peer_access_unsupported = 217,
    file_not_found = 301,
    operating_system = 304,
    invalid_handle = 400,
    not_found = 500,
    not_ready = 600,
    launch_out_of_resources = 701,
    peer_access_already_enabled = 704,
    peer_access_not_enabled = 705,
    context_destroyed = 709,
    host_memory_already_registered = 712,
    host_memory_not_registered = 713,
    launch_failed = 719,
    not_permitted = 800,
    not_supported = 801,
    capture_unsupported = 900,
    capture_invalidated = 901,
    capture_isolation = 905,
    capture_implicit = 906,
    captured_event = 907,
    unknown = 999
};

/// "out of memory". Static.
[[nodiscard]] const char* description(Error error) noexcept;
/// The enumerator's name without a vendor's prefix, in capitals: "OUT_OF_MEMORY"; null for a number that is no error.
[[nodiscard]] const char* capital_name(Error error) noexcept;
/// The same in camel case: "MemoryAllocation"; as the runtimes of both vendors spell it.
[[nodiscard]] const char* camel_name(Error error) noexcept;

}  // namespace awaken::emulator
