// SPDX-License-Identifier: Apache-2.0
// A program without MPI that opens a library which has it:
//
//     module_host LIBRARY FLAGS GPU     FLAGS of lazy, now, local, global, deepbind, joined by +
//
// Prints `ok module` when the library's work was right.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main(int argument_count, char** arguments) {
    if (argument_count != 4) {
        return 2;
    }
    const auto asked = [&](const char* const flag, const int value) {
        return std::strstr(arguments[2], flag) != nullptr ? value : 0;
    };
    void* const module = dlopen(arguments[1], asked("lazy", RTLD_LAZY) | asked("now", RTLD_NOW) |
                                                  asked("global", RTLD_GLOBAL) | asked("deepbind", RTLD_DEEPBIND));
    // A library that was opened well leaves no error behind.
    const char* const error = dlerror();
    const auto run = module != nullptr ? reinterpret_cast<int (*)(const char*)>(dlsym(module, "run_module")) : nullptr;
    if (error != nullptr || run == nullptr || run(arguments[3]) != 0) {
        std::fprintf(stderr, "FAIL module: %s\n", error != nullptr ? error : "wrong data");
        return 1;
    }
    std::puts("ok module");
    return 0;
}
