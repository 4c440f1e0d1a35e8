// SPDX-License-Identifier: Apache-2.0
// A GPU runtime whose "device" memory is ordinary host memory, so that programs run on any MPI and what they check
// themselves can be put to the test. Compiled as libcudart (PREFIX cuda) or libamdhip64 (PREFIX hip).
//
// DEVICES: how many it reports. WITHOUT_PINNED leaves the pinned-memory calls out. Each hipSetDevice is told on stderr.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define CALL(name) __attribute__((visibility("default"))) int JOIN(PREFIX, name)
#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)

enum { success = 0, invalid_value = 1, out_of_memory = 2, no_device = 100 };

static int current_device;

__attribute__((visibility("default"))) const char* JOIN(PREFIX, GetErrorString)(int error) {
    return error == success ? "no error" : error == no_device ? "no device here" : "some other error";
}

CALL(GetDeviceCount)(int* count) {
    *count = DEVICES;
    return DEVICES > 0 ? success : no_device;
}
CALL(SetDevice)(int device) {
    fprintf(stderr, "<" TEXT(PREFIX) " device %d>\n", device);
    current_device = device;
    return device >= 0 && device < DEVICES ? success : invalid_value;
}
CALL(GetDevice)(int* device) {
    *device = current_device;
    return success;
}

static int allocate(void** pointer, size_t bytes) {
    *pointer = malloc(bytes);
    return *pointer != NULL ? success : out_of_memory;
}
static int release(void* pointer) {
    free(pointer);
    return success;
}
CALL(Malloc)(void** pointer, size_t bytes) {
    return allocate(pointer, bytes);
}
CALL(Free)(void* pointer) {
    return release(pointer);
}
CALL(MallocManaged)(void** pointer, size_t bytes, unsigned flags) {
    return flags == 1 ? allocate(pointer, bytes) : invalid_value;
}
#ifndef WITHOUT_PINNED
CALL(HostAlloc)(void** pointer, size_t bytes, unsigned flags) {
    return flags == 0 ? allocate(pointer, bytes) : 1;
}
CALL(HostMalloc)(void** pointer, size_t bytes, unsigned flags) {
    return flags == 0 ? allocate(pointer, bytes) : 1;
}
CALL(FreeHost)(void* pointer) {
    return release(pointer);
}
CALL(HostFree)(void* pointer) {
    return release(pointer);
}
#endif
CALL(Memcpy)(void* destination, const void* source, size_t bytes, int kind) {
    memcpy(destination, source, bytes);
    return kind >= 1 && kind <= 3 ? success : invalid_value;
}
CALL(Memset)(void* destination, int value, size_t bytes) {
    memset(destination, value, bytes);
    return success;
}
CALL(MemGetInfo)(size_t* free_bytes, size_t* total_bytes) {
    const char* const limit = getenv("STAND_IN_MEMORY_BYTES");
    *free_bytes = *total_bytes = limit != NULL ? (size_t)strtoull(limit, NULL, 10) : (size_t)1 << 30;
    return success;
}
CALL(GetLastError)(void) {
    return success;
}
CALL(DeviceSynchronize)(void) {
    return success;
}
CALL(StreamCreateWithFlags)(void** stream, unsigned flags) {
    *stream = malloc(1);
    return flags == 1 && *stream != NULL ? success : invalid_value;
}
CALL(StreamDestroy)(void* stream) {
    free(stream);
    return success;
}
CALL(StreamSynchronize)(void* stream) {
    return stream != NULL ? success : invalid_value;
}
