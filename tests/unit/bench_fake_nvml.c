// SPDX-License-Identifier: Apache-2.0
// A stand-in for NVIDIA's management library: one device, 18 links of which one is down.
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int device;

EXPORT int nvmlInit_v2(void) {
    return 0;
}
EXPORT int nvmlShutdown(void) {
    return 0;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
    *handle = &device;
    return strcmp(bus_id, "0000:1b:00.0") == 0 ? 0 : 6;  // NVML_ERROR_NOT_FOUND
}
EXPORT int nvmlDeviceGetClockInfo(void* handle, int which, unsigned* mhz) {
    *mhz = which == 1 ? 1755 : 3201;
    return handle == &device && (which == 1 || which == 2) ? 0 : 2;
}
EXPORT int nvmlDeviceGetMaxClockInfo(void* handle, int which, unsigned* mhz) {
    *mhz = which == 1 ? 1980 : 3201;
    return handle == &device ? 0 : 2;
}
EXPORT int nvmlDeviceGetNvLinkState(void* handle, unsigned link, int* active) {
    *active = link != 5;
    return handle == &device && link < 18 ? 0 : 2;
}
