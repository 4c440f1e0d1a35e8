// SPDX-License-Identifier: Apache-2.0
// Words that all ranks of one machine see without MPI: for programs that meet by other means.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "support.h"

namespace ranks {

/// Zero at first. Made by all ranks of a run together.
class SharedWords {
  public:
    static constexpr int kCount = 1024;

    explicit SharedWords(const MPI_Comm comm) {
        int rank = 0;
        MPI_Comm_rank(comm, &rank);
        const char* folder = std::getenv("TMPDIR");
        int id = rank == 0 ? static_cast<int>(getpid()) : 0;
        MPI_Bcast(&id, 1, MPI_INT, 0, comm);
        const std::string path = format("%s/words-%d", folder != nullptr ? folder : "/tmp", id);
        const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, kBytes) != 0) {
            throw std::runtime_error("no shared words");
        }
        MPI_Barrier(comm);
        void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (memory == MAP_FAILED) {
            throw std::runtime_error("no shared words");
        }
        _words = static_cast<std::atomic<int>*>(memory);
        MPI_Barrier(comm);
        if (rank == 0) {
            unlink(path.c_str());
        }
        MPI_Barrier(comm);
    }
    SharedWords(const SharedWords&) = delete;
    SharedWords& operator=(const SharedWords&) = delete;
    ~SharedWords() { munmap(_words, kBytes); }
    std::atomic<int>& operator[](int index) { return _words[index]; }

  private:
    static constexpr std::size_t kBytes = kCount * sizeof(std::atomic<int>);
    std::atomic<int>* _words = nullptr;
};

}  // namespace ranks
