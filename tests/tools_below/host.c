// SPDX-License-Identifier: Apache-2.0
/* Opens a shared object that is linked to MPI in a scope of its own, as Python does with its extension modules. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
    void* plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (plugin == NULL) {
        fprintf(stderr, "usage: host PLUGIN (%s)\n", argc == 2 ? dlerror() : "no plugin given");
        return 2;
    }
    int (*run)(void);
    *(void**)&run = dlsym(plugin, "run");
    return run == NULL ? 2 : run();
}
