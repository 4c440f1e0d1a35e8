// SPDX-License-Identifier: Apache-2.0
// What a process needs to work on device memory for collectives: streams, kernels, and the words by which a kernel says
// that it is over. All communicators share one engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ccl/ccl.h"
#include "coll/device/control_block.h"
#include "coll/device/plan.h"
#include "coll/device/selection.h"
#include "gpu/gpu.h"
#include "stream/ordering.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/mappings.h"
#include "transfer/tuning.h"

namespace awaken::coll {

class Engine final : public stream::Watched {
  public:
    /// Called with the reason when something did not go the fastest way.
    using Note = std::function<void(const std::string& reason)>;

    /// Everything given must outlive the engine.
    Engine(gpu::Runtime& runtime, transfer::Exports& exports, transfer::ExportedPool& exported,
           transfer::Mappings& mappings, transfer::DeviceCopies& copies, const transfer::Tuning& tuning, Note note);
    ~Engine() override;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Collectives may be parts of the default stream; null: they may not. Before any collective.
    void order_by(stream::Ordering* ordering) noexcept;
    [[nodiscard]] stream::Ordering* ordering() const noexcept { return _ordering; }

    /// What remains of a collective in the default stream when its call has returned.
    class Remains {
      public:
        virtual ~Remains() = default;
        Remains() = default;
        Remains(const Remains&) = delete;
        Remains& operator=(const Remains&) = delete;
        /// True when nothing remains.
        [[nodiscard]] virtual bool look() noexcept = 0;
        /// Lets its waits go. Never calls the runtime.
        virtual void let_go() noexcept = 0;
    };
    void keep(std::unique_ptr<Remains> remains);
    /// Gives up what is over. Later calls do it, and look() now and then.
    void sweep() noexcept;
    void look() noexcept override { sweep(); }
    void let_go() noexcept override;

    /// Whether there are kernels for this code (see kernels::code_of) on the device. Compiles them if need be, which
    /// takes up to seconds once per machine. `none`: there is no compiler; the reason is noted once. `not_yet`: the
    /// device is busy, and the kernels are not loaded.
    enum class Kernels : std::uint8_t { none, not_yet, usable };
    [[nodiscard]] Kernels prepare(int device, std::uint32_t code);

    /// A kernel, or several in a row, that is under way.
    class Work {
      public:
        Work() = default;
        Work(Work&& other) noexcept;
        Work& operator=(Work&& other) noexcept;
        Work(const Work&) = delete;
        Work& operator=(const Work&) = delete;
        /// Waits until the GPU is done, but not for the default stream: what it waits for may never come. Its kernel
        /// then keeps what it uses.
        ~Work();

        [[nodiscard]] explicit operator bool() const noexcept { return _engine != nullptr; }
        /// Asks the runtime whether an error came up. True when the GPU is done. Costs a microsecond. Throws Error.
        [[nodiscard]] bool query();
        /// The word says that the work is over: gives everything back without asking the runtime.
        void finished() noexcept;

      private:
        friend class Engine;
        void end() noexcept;
        Engine* _engine = nullptr;
        int _device = -1;
        gpu::StreamHandle _stream;
        std::uint32_t _counter = 0;
        trace::Stretch _traced;
    };

    /// A copy for kernels, by addresses.
    struct Copy {
        std::uint64_t target, source, bytes;
    };
    struct Fold {
        std::uint32_t code;
        std::vector<std::uint64_t> sources, targets;
        std::uint64_t elements;
    };
    /// What the program is expected to do meanwhile. It gets more of the GPU's processors when it computes.
    enum class Beside : std::uint8_t { nothing, kernels };
    /// The kernels are parts of the default stream, and their end waits for others': for these words (at most
    /// kernels::kMostAwaited) to reach `number`, or for `released`.
    struct InOrder {
        std::span<const std::uint64_t> words;
        std::uint64_t released = 0;
        std::uint32_t number = 0;
    };
    /// Starts kernels on `device`. When they are over, and everything that they have written can be seen everywhere,
    /// `word` (pinned or registered host memory) becomes `value`. Takes at least one fold or copy. Throws Error.
    [[nodiscard]] Work start(int device, const std::vector<Fold>& folds, const std::vector<Copy>& copies,
                             std::atomic<std::uint64_t>& word, std::uint64_t value, Beside beside = Beside::nothing,
                             const InOrder* in_order = nullptr);

    /// Does one fold, and waits for it.
    void run(int device, const Fold& fold);

    /// As start(), for work that NCCL or RCCL puts into a stream: calls `issue` with `device` current. Throws what
    /// `issue` throws.
    [[nodiscard]] Work start(int device, const std::function<void(gpu::StreamHandle)>& issue,
                             std::atomic<std::uint64_t>& word, std::uint64_t value);

    /// Identifies a GPU among all of the machine's, also those that this process does not see. Never 0.
    [[nodiscard]] std::uint64_t identity_of(int device);
    /// NCCL or RCCL. Null, with the reason noted once, if there is none.
    [[nodiscard]] const ccl::Library* ccl();

    /// Says whether this process may use NCCL or RCCL now. Collectives of different communicators that wait for each
    /// other's GPUs would wait for ever. So the collectives of one node take turns (see CollectiveOp::has_turn). A
    /// collective across nodes has no turn to take, so it must be the only one of its process.
    enum class LibraryUse : std::uint8_t { by_turns, alone };
    [[nodiscard]] bool use_library(LibraryUse use) noexcept;
    void end_use_of_library(LibraryUse use) noexcept;

    /// A word for a kernel to write to, in memory that stays until shut_down(). Null when the runtime gives none.
    [[nodiscard]] std::atomic<std::uint64_t>* take_word();
    void give_back_word(std::atomic<std::uint64_t>* word) noexcept;

    /// Lets kernels write to shared memory. The memory stays registered until shut_down(), or until its control block
    /// retires.
    [[nodiscard]] bool register_memory(std::span<std::byte> memory);
    /// Takes a control block that is no longer used, and whose own memory is registered. The engine keeps it until it
    /// can undo the registration.
    void retire(std::unique_ptr<ControlBlock> control_block) noexcept;

    /// Waits for work that is under way and gives everything back, while the runtime is still there. Safe to call
    /// twice.
    void shut_down() noexcept;

    [[nodiscard]] gpu::Runtime& runtime() noexcept { return _runtime; }
    [[nodiscard]] transfer::Exports& exports() noexcept { return _exports; }
    [[nodiscard]] transfer::ExportedPool& exported() noexcept { return _exported; }
    [[nodiscard]] transfer::Mappings& mappings() noexcept { return _mappings; }
    [[nodiscard]] transfer::DeviceCopies& copies() noexcept { return _copies; }
    void note_once(const std::string& reason);

  private:
    struct Device;
    [[nodiscard]] Device& device_of(int device);
    /// Frees retired control blocks if that waits for nothing. Needs the lock.
    void give_up_retired(std::chrono::microseconds patience = {}) noexcept;
    [[nodiscard]] static std::uint64_t bytes_of(const std::vector<Fold>& folds,
                                                const std::vector<Copy>& copies) noexcept;
    /// Makes the Work for kernels that are about to be launched. Needs the lock.
    [[nodiscard]] Work reserve(Device& device, gpu::StreamHandle stream);
    [[nodiscard]] unsigned blocks_for(unsigned most, std::uint64_t bytes) const noexcept;

    gpu::Runtime& _runtime;
    transfer::Exports& _exports;
    transfer::ExportedPool& _exported;
    transfer::Mappings& _mappings;
    transfer::DeviceCopies& _copies;
    const transfer::Tuning _tuning;
    const Note _note;
    std::mutex _mutex;
    std::vector<std::unique_ptr<Device>> _devices;
    std::vector<std::pair<int, std::uint64_t>> _identities;  ///< by device
    std::vector<std::unique_ptr<ControlBlock>> _retired;
    std::vector<void*> _word_pages;
    std::vector<std::atomic<std::uint64_t>*> _free_words;
    std::vector<void*> _registered;
    std::vector<std::string> _noted;
    bool _ccl_tried = false;
    const ccl::Library* _ccl = nullptr;
    std::atomic<int> _library_uses{0};  ///< by turns; -1: one alone
    stream::Ordering* _ordering = nullptr;
    std::mutex _kept_mutex;
    std::vector<std::unique_ptr<Remains>> _kept;
    std::atomic<bool> _keeps{false};
    bool _shut_down = false;
};

}  // namespace awaken::coll
