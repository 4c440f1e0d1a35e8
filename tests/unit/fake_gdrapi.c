// SPDX-License-Identifier: Apache-2.0
// A stand-in for GDRCopy's library, for the emulated driver, whose "device" memory is a file in memory. Programs cannot
// touch what they are given; it is mapped once more, at a distance that the driver tells its kernels.
//
// A mapping made here is a further one of the same file. So it keeps showing the memory that it was made for, also when
// another allocation has taken the address; and touching it after it was unmapped is a segmentation fault, as on real
// hardware.
#define _GNU_SOURCE
#include "fake_gdrapi.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { PAGE_OF_GPU = 65536 };

struct gdr {
    int in_use;
};
typedef struct {
    unsigned long h;
} gdr_mh_t;

struct pin {
    unsigned long address;
    size_t size;
    char* view;
};

// A line of the list of mappings.
struct area {
    unsigned long start, end;
    int writable;
};
struct areas {
    struct area* lines;
    size_t count;
};

EXPORT struct fake_gdrapi fake_gdrapi;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void count(int* counter, int change) {
    pthread_mutex_lock(&counting);
    *counter += change;
    pthread_mutex_unlock(&counting);
}

static int misused(void) {
    count(&fake_gdrapi.misuses, 1);
    return EINVAL;
}

static int fails(int* times) {
    int result = 0;
    pthread_mutex_lock(&counting);
    if (*times > 0) {
        --*times;
        result = 1;
    }
    pthread_mutex_unlock(&counting);
    return result;
}

// All mappings of files.
static struct areas read_areas(void) {
    struct areas result = {NULL, 0};
    FILE* const list = fopen("/proc/self/maps", "re");
    char* text = NULL;
    size_t room = 0;
    if (list == NULL) {
        return result;
    }
    while (getline(&text, &room, list) > 0) {
        struct area area;
        char rights[8];
        unsigned long inode = 0;
        if (sscanf(text, "%lx-%lx %7s %*x %*s %lu", &area.start, &area.end, rights, &inode) != 4 || inode == 0) {
            continue;
        }
        area.writable = strncmp(rights, "rw", 2) == 0 && rights[3] == 's';
        struct area* const more = realloc(result.lines, (result.count + 1) * sizeof *more);
        if (more == NULL) {
            break;
        }
        result.lines = more;
        result.lines[result.count++] = area;
    }
    free(text);
    fclose(list);
    return result;
}

// Which ends of what was pinned hold device memory: a driver pins nothing that begins or ends outside of it.
enum { FIRST_PAGE = 1, LAST_PAGE = 2, BOTH_PAGES = 3 };

static unsigned long larger(unsigned long a, unsigned long b) {
    return a > b ? a : b;
}
static unsigned long smaller(unsigned long a, unsigned long b) {
    return a < b ? a : b;
}

// Where a mapping is put together.
struct target {
    char* start;
    size_t size;
};

// Puts `size` bytes at `start` of this process there, by the rule that moving 0 bytes makes a further mapping of the
// same pages. Returns which ends that was.
static int map_again(unsigned long start, unsigned long size, unsigned long offset, struct target target) {
    char* const where = target.start + offset;
    if (mremap((void*)start, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, where) == MAP_FAILED) {
        return 0;
    }
    return (offset < PAGE_OF_GPU ? FIRST_PAGE : 0) | (offset + size > target.size - PAGE_OF_GPU ? LAST_PAGE : 0);
}

// Maps what can be written of the memory at `from`.
static int map_writable(const struct areas* areas, unsigned long from, struct target target) {
    int found = 0;
    for (size_t i = 0; i < areas->count; ++i) {
        const struct area* const area = &areas->lines[i];
        const unsigned long start = larger(area->start, from);
        const unsigned long end = smaller(area->end, from + target.size);
        if (area->writable && start < end) {
            found |= map_again(start, end - start, start - from, target);
        }
    }
    return found;
}

// How far the emulated driver's memory at `address` is from where it can be touched; 0 when it is not the emulator's.
static long emulated_distance(unsigned long address) {
    const struct {
        unsigned long base, length;
        long distance;
    }* range = NULL;
    void* const emulator = dlopen("libawaken-emulator.so", RTLD_LAZY | RTLD_NOLOAD);
    if (emulator == NULL) {
        return 0;
    }
    range = dlsym(emulator, "_ZN6awaken7kernels4host12device_rangeE");
    const long distance = range != NULL && address - range->base < range->length ? range->distance : 0;
    dlclose(emulator);
    return distance;
}

EXPORT struct gdr* gdr_open(void) {
    struct gdr* const result = fake_gdrapi.open_fails ? NULL : calloc(1, sizeof *result);
    if (result != NULL) {
        count(&fake_gdrapi.opened, 1);
    }
    return result;
}

EXPORT int gdr_close(struct gdr* context) {
    if (context->in_use != 0) {
        return misused();
    }
    free(context);
    count(&fake_gdrapi.closed, 1);
    return 0;
}

EXPORT int gdr_pin_buffer(struct gdr* context, unsigned long address, size_t size, uint64_t token, uint32_t space,
                          gdr_mh_t* handle) {
    // The real driver rounds by itself; then the mapping does not begin where the caller thinks.
    if (address % PAGE_OF_GPU != 0 || size % PAGE_OF_GPU != 0 || size == 0 || token != 0 || space != 0) {
        return misused();
    }
    if (fails(&fake_gdrapi.pin_fails)) {
        return ENOMEM;
    }
    struct pin* const pin = calloc(1, sizeof *pin);
    if (pin == NULL) {
        return ENOMEM;
    }
    pin->address = address;
    pin->size = size;
    handle->h = (unsigned long)pin;
    ++context->in_use;
    count(&fake_gdrapi.pins, 1);
    count(&fake_gdrapi.pinned, 1);
    return 0;
}

EXPORT int gdr_unpin_buffer(struct gdr* context, gdr_mh_t handle) {
    struct pin* const pin = (struct pin*)handle.h;
    if (pin->view != NULL) {
        return misused();
    }
    free(pin);
    --context->in_use;
    count(&fake_gdrapi.pinned, -1);
    return 0;
}

EXPORT int gdr_map(struct gdr* context, gdr_mh_t handle, void** view, size_t size) {
    struct pin* const pin = (struct pin*)handle.h;
    (void)context;
    if (pin->view != NULL || size != pin->size) {
        return misused();
    }
    if (fails(&fake_gdrapi.map_fails)) {
        return EAGAIN;
    }
    char* const room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return errno;
    }
    const struct areas areas = read_areas();
    const unsigned long distance = (unsigned long)emulated_distance(pin->address);
    const struct target target = {room, size};
    const int found = distance == 0 ? 0 : map_writable(&areas, pin->address + distance, target);
    free(areas.lines);
    if (found != BOTH_PAGES) {
        munmap(room, size);
        return EINVAL;
    }
    *view = pin->view = room;
    count(&fake_gdrapi.mapped, 1);
    return 0;
}

EXPORT int gdr_unmap(struct gdr* context, gdr_mh_t handle, void* view, size_t size) {
    struct pin* const pin = (struct pin*)handle.h;
    (void)context;
    if (pin->view == NULL || view != pin->view || size != pin->size) {
        return misused();
    }
    munmap(view, size);
    pin->view = NULL;
    count(&fake_gdrapi.mapped, -1);
    return 0;
}

static int inside(const struct pin* pin, const char* at, size_t size) {
    return pin->view != NULL && at >= pin->view && size <= pin->size && (size_t)(at - pin->view) <= pin->size - size;
}

static void call_during_copy(void) {
    pthread_mutex_lock(&counting);
    void (*const call)(void) = fake_gdrapi.during_copy;
    fake_gdrapi.during_copy = NULL;
    pthread_mutex_unlock(&counting);
    if (call != NULL) {
        call();
    }
}

EXPORT int gdr_copy_to_mapping(gdr_mh_t handle, void* view, const void* host, size_t size) {
    if (!inside((const struct pin*)handle.h, view, size)) {
        return misused();
    }
    if (fails(&fake_gdrapi.copy_fails)) {
        return EINVAL;
    }
    call_during_copy();
    if (!fake_gdrapi.loses_writes) {
        memcpy(view, host, size);
    }
    return 0;
}

EXPORT int gdr_copy_from_mapping(gdr_mh_t handle, void* host, const void* view, size_t size) {
    if (!inside((const struct pin*)handle.h, view, size)) {
        return misused();
    }
    if (fails(&fake_gdrapi.copy_fails)) {
        return EINVAL;
    }
    call_during_copy();
    memcpy(host, view, size);
    if (fake_gdrapi.spoils_reads) {
        ((unsigned char*)host)[size / 2] ^= 1;
    }
    return 0;
}

EXPORT void gdr_runtime_get_version(int* major, int* minor) {
    *major = 2;
    *minor = 4;
}
