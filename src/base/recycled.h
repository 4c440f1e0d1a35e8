// SPDX-License-Identifier: Apache-2.0
// Memory for objects that come and go with each message.
//
// The allocator of the C library keeps seven blocks of a size at hand for a thread, and takes several times as long for
// the eighth. A program that has 64 messages under way makes and destroys 64 objects of each kind in a row.
#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace awaken {

/// Blocks of `Bytes` bytes that this thread has given back and may get again.
template <std::size_t Bytes>
class SpareBlocks {
  public:
    [[nodiscard]] static void* take() {
        SpareBlocks& own = of_this_thread();
        if (own._first == nullptr) {
            return ::operator new(Bytes);
        }
        Spare* const spare = own._first;
        own._first = spare->next;
        --own._count;
        return spare;
    }
    static void give_back(void* const block) noexcept {
        SpareBlocks& own = of_this_thread();
        if (own._count >= own._most) {
            ::operator delete(block);
            return;
        }
        own._first = new (block) Spare{own._first};
        ++own._count;
    }

  private:
    struct Spare {
        Spare* next;
    };
    static_assert(Bytes >= sizeof(Spare));
    /// As many as a window of messages has in most programs, in both directions.
    static constexpr std::size_t kMost = 256;

    ~SpareBlocks() {
        // Objects may outlive this: threads end, and so does the process, while messages are under way.
        _most = 0;
        while (_first != nullptr) {
            Spare* const spare = _first;
            _first = spare->next;
            ::operator delete(spare);
        }
        _count = 0;
    }
    [[nodiscard]] static SpareBlocks& of_this_thread() noexcept {
        static thread_local SpareBlocks blocks;
        return blocks;
    }

    Spare* _first = nullptr;
    std::size_t _count = 0, _most = kMost;
};

/// A base of final classes whose objects use such memory.
template <class Derived>
class Recycled {
  public:
    [[nodiscard]] static void* operator new(std::size_t) { return SpareBlocks<sizeof(Derived)>::take(); }
    static void operator delete(void* const block) noexcept { SpareBlocks<sizeof(Derived)>::give_back(block); }
};

/// A vector for the time of one call, with the memory of an earlier one of this thread.
template <class T>
class ScratchVector {
  public:
    ScratchVector() {
        if (Spares& own = of_this_thread(); !own.over && !own.list.empty()) {
            _items.swap(own.list.back());
            own.list.pop_back();
        }
    }
    ~ScratchVector() {
        constexpr std::size_t kMost = 4;
        _items.clear();
        if (Spares& own = of_this_thread(); !own.over && own.list.size() < kMost) {
            try {
                own.list.push_back(std::move(_items));
            } catch (const std::bad_alloc&) {
                // The memory is freed.
            }
        }
    }
    ScratchVector(const ScratchVector&) = delete;
    ScratchVector& operator=(const ScratchVector&) = delete;
    [[nodiscard]] std::vector<T>& operator*() noexcept { return _items; }
    [[nodiscard]] const std::vector<T>& operator*() const noexcept { return _items; }

  private:
    struct Spares {
        ~Spares() { over = true; }  // calls may come after this: in destructors of the program, at its end
        std::vector<std::vector<T>> list;
        bool over = false;
    };
    [[nodiscard]] static Spares& of_this_thread() noexcept {
        static thread_local Spares spares;
        return spares;
    }
    std::vector<T> _items;
};

/// For std::allocate_shared().
template <class T>
struct RecyclingAllocator {
    using value_type = T;
    RecyclingAllocator() = default;
    template <class Other>
    RecyclingAllocator(const RecyclingAllocator<Other>&) noexcept {}

    [[nodiscard]] T* allocate(const std::size_t count) {
        return static_cast<T*>(count == 1 ? SpareBlocks<sizeof(T)>::take() : ::operator new(count * sizeof(T)));
    }
    void deallocate(T* const block, const std::size_t count) noexcept {
        if (count == 1) {
            SpareBlocks<sizeof(T)>::give_back(block);
        } else {
            ::operator delete(block);
        }
    }
    template <class Other>
    bool operator==(const RecyclingAllocator<Other>&) const noexcept {
        return true;
    }
};

}  // namespace awaken
