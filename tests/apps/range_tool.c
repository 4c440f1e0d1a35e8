// SPDX-License-Identifier: Apache-2.0
// Stands in for what ranges are told to, and says on stderr what it hears: "<NAME> push sum", "<NAME> pop".
//
// -DPUSH and -DPOP: the names of the two functions that it exports (nvtxRangePushA, roctxRangePushA, ...).
// Without them it is a tool that NVTX 3 loads by itself: it takes the function tables that it is handed and puts its
// own functions there, as the tools of NVIDIA do. -DREFUSES: it does not want to.
#include <stdint.h>
#include <stdio.h>

#ifndef PUSH
#define PUSH injected_push
#define POP injected_pop
#define INJECTED
#endif

int PUSH(const char* name);
int POP(void);

static _Thread_local int depth;

int PUSH(const char* name) {
    fprintf(stderr, "<%s> push %s\n", TOOL, name);
    return depth++;
}

int POP(void) {
    fprintf(stderr, "<%s> pop\n", TOOL);
    return --depth;
}

#ifdef INJECTED
typedef void (*Function)(void);
typedef struct {
    size_t struct_size;
    int (*module_table)(int module, Function*** table, unsigned* size);
} Callbacks;

typedef struct {
    size_t struct_size;
    uint32_t version;
    uint32_t reserved;
    void (*set_tool_version)(uint32_t version);
} Version;

int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
    const Callbacks* const callbacks = export_table(1);
    const Version* const version = export_table(3);
    if (callbacks == NULL || callbacks->struct_size < sizeof *callbacks) {
        return 0;
    }
    if (version == NULL || version->struct_size < sizeof *version || version->version < 2) {
        return 0;
    }
    version->set_tool_version(3);
    // Neither 0, which is none, nor 2, which is reserved.
    if (export_table(0) != NULL || export_table(2) != NULL || export_table(4) != NULL) {
        return 0;
    }
    // The tools fill in every module that they know.
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    for (int module = 1; module <= 6; ++module) {
        Function** table = NULL;
        unsigned size = 0;
        if (!callbacks->module_table(module, &table, &size) || size != sizes[module] || table[0] != NULL) {
            return 0;
        }
        for (unsigned i = 1; i < size; ++i) {
            if (table[i] == NULL) {
                return 0;
            }
        }
        if (module != 1) {
            continue;
        }
        *table[9] = (Function)PUSH;
        *table[11] = (Function)POP;
    }
    unsigned size = 0;
    if (callbacks->module_table(7, NULL, &size) || callbacks->module_table(0, NULL, &size)) {
        return 0;
    }
#ifdef REFUSES
    return 0;
#else
    return 1;
#endif
}
#endif
