// Host memory for a message whose size is not known yet: as large as the receive allows, and hardly ever used.
//
// A receive into device memory is posted to the MPI before it is known whether a short header or the message itself
// will come. Address space for the message costs nothing as long as nobody writes to it, so that is what is given.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace awaken::transfer {

class LandingPool;

class Landing {
  public:
    Landing() = default;
    Landing(Landing&& other) noexcept;
    Landing& operator=(Landing&& other) noexcept;
    Landing(const Landing&) = delete;
    Landing& operator=(const Landing&) = delete;
    ~Landing() { release(); }

    [[nodiscard]] std::byte* data() const noexcept { return _data; }
    [[nodiscard]] explicit operator bool() const noexcept { return _data != nullptr; }
    /// So many bytes from the start were written: their memory goes back to the system with the landing, unless it is
    /// little.
    void used(std::size_t bytes) noexcept { _used = bytes; }
    void release() noexcept;

  private:
    friend class LandingPool;
    LandingPool* _pool = nullptr;
    std::byte* _data = nullptr;
    std::size_t _capacity = 0;
    std::size_t _used = 0;
};

/// Thread-safe. Regions are powers of two and kept for reuse, a few of each size.
class LandingPool {
  public:
    LandingPool() = default;
    ~LandingPool();
    LandingPool(const LandingPool&) = delete;
    LandingPool& operator=(const LandingPool&) = delete;

    /// Throws awaken::Error when the address space is exhausted.
    [[nodiscard]] Landing acquire(std::size_t bytes);
    void trim() noexcept;

  private:
    friend class Landing;
    void give_back(std::byte* data, std::size_t capacity, std::size_t used) noexcept;

    std::mutex _mutex;
    std::map<std::size_t, std::vector<std::byte*>> _free;
};

}  // namespace awaken::transfer
