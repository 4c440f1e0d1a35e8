// An MPI that a layer over it is kept in: after each question to the MPI (is it complete, is there something) the
// process is out of the processor for a while, as one is that has to give it up whenever the MPI finds nothing to do.
//
// A layer finds the MPI's functions by dlsym(), for which this program has its own. Include it in one file.
#pragma once

#include <dlfcn.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <thread>

namespace ranks::slow_mpi {

/// How long each question lasts; 0: as long as it does.
inline std::atomic<int> pause_ms{0};
/// Counts messages of so many bytes or more that were found to be complete.
inline std::atomic<int>* parts = nullptr;
inline int part_bytes = 0;

inline int after_pause(const int error) {
    if (const int time = pause_ms.load(); time != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(time));
    }
    return error;
}

inline decltype(&PMPI_Test) test = nullptr;
inline decltype(&PMPI_Testsome) testsome = nullptr;
inline decltype(&PMPI_Iprobe) iprobe = nullptr;

inline int slow_test(MPI_Request* request, int* flag, MPI_Status* status) {
    const int error = test(request, flag, status);
    if (parts != nullptr && error == MPI_SUCCESS && *flag != 0 && status != MPI_STATUS_IGNORE) {
        int bytes = 0;
        PMPI_Get_count(status, MPI_BYTE, &bytes);
        if (bytes >= part_bytes) {
            ++*parts;
        }
    }
    return after_pause(error);
}
inline int slow_testsome(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
    return after_pause(testsome(count, requests, done, indices, statuses));
}
inline int slow_iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
    return after_pause(iprobe(source, tag, comm, flag, status));
}

using Find = void* (*)(void*, const char*);

inline Find find_symbol() {
    for (const char* const version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
        if (void* const found = dlvsym(RTLD_DEFAULT, "dlsym", version)) {
            return reinterpret_cast<Find>(found);
        }
    }
    return nullptr;
}

/// Ours for one of the MPI's; null for any other name.
template <class Function>
void* instead(const char* name, const char* ours, Function& theirs, Function slow, Find find, void* handle) {
    if (std::strcmp(name, ours) != 0) {
        return nullptr;
    }
    theirs = reinterpret_cast<Function>(find(handle, name));
    return theirs != nullptr ? reinterpret_cast<void*>(slow) : nullptr;
}

}  // namespace ranks::slow_mpi

// RTLD_NEXT is what comes after the caller, which the jump at the end leaves as it is. Sanitizers make calls of jumps.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define RANKS_HAVE_SLOW_MPI 1
extern "C" __attribute__((visibility("default"), optimize("optimize-sibling-calls"))) void* dlsym(void* handle,
                                                                                                  const char* name) {
    namespace slow = ranks::slow_mpi;
    static const slow::Find find = slow::find_symbol();
    if (handle != RTLD_NEXT && std::strncmp(name, "PMPI_", 5) == 0) {
        void* found = slow::instead(name, "PMPI_Test", slow::test, &slow::slow_test, find, handle);
        if (found == nullptr) {
            found = slow::instead(name, "PMPI_Testsome", slow::testsome, &slow::slow_testsome, find, handle);
        }
        if (found == nullptr) {
            found = slow::instead(name, "PMPI_Iprobe", slow::iprobe, &slow::slow_iprobe, find, handle);
        }
        if (found != nullptr) {
            return found;
        }
    }
    return find(handle, name);
}
#else
#define RANKS_HAVE_SLOW_MPI 0
#endif
