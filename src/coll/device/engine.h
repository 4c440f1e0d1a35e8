// What a process needs to work on device memory for collectives: streams, kernels and the words by which a kernel says
// that it is over. One for all communicators.
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
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/mappings.h"
#include "transfer/tuning.h"

namespace awaken::coll {

class Engine {
  public:
    /// Hears why something did not go the fastest way.
    using Note = std::function<void(const std::string& reason)>;

    /// Everything given must outlive the engine.
    Engine(gpu::Runtime& runtime, transfer::Exports& exports, transfer::ExportedPool& exported,
           transfer::Mappings& mappings, transfer::DeviceCopies& copies, const transfer::Tuning& tuning, Note note);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Whether kernels for this code (see kernels::code_of) can be had on the device; compiles them if need be, which
    /// takes up to seconds once a machine. `none`, with the reason noted once, where there is no compiler; `not_yet`
    /// while the device is busy and they are not loaded.
    enum class Kernels : std::uint8_t { none, not_yet, usable };
    [[nodiscard]] Kernels prepare(int device, std::uint32_t code);

    /// A kernel, or several in a row, under way.
    class Work {
      public:
        Work() = default;
        Work(Work&& other) noexcept;
        Work& operator=(Work&& other) noexcept;
        Work(const Work&) = delete;
        Work& operator=(const Work&) = delete;
        /// Waits until the GPU is done.
        ~Work();

        [[nodiscard]] explicit operator bool() const noexcept { return _engine != nullptr; }
        /// Asks the runtime whether an error came up; true when the GPU is done. Costs a microsecond. Throws Error.
        [[nodiscard]] bool query();
        /// The word says that it is over: gives everything back without asking.
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

    /// A place of memory, for kernels.
    struct Copy {
        std::uint64_t target, source, bytes;
    };
    struct Fold {
        std::uint32_t code;
        std::vector<std::uint64_t> sources, targets;
        std::uint64_t elements;
    };
    /// What the program is expected to do meanwhile: it gets more of the processors when it computes.
    enum class Beside : std::uint8_t { nothing, kernels };
    /// Starts kernels on `device`. When they are over, `word` (pinned or registered host memory) becomes `value`, after
    /// everything that they have written can be seen everywhere. At least one fold or copy. Throws Error.
    [[nodiscard]] Work start(int device, const std::vector<Fold>& folds, const std::vector<Copy>& copies,
                             std::atomic<std::uint64_t>& word, std::uint64_t value, Beside beside = Beside::nothing);

    /// One fold, waited for.
    void run(int device, const Fold& fold);

    /// As start(), for what a library puts into a stream: `issue` is called with `device` current. Throws what it
    /// throws.
    [[nodiscard]] Work start(int device, const std::function<void(gpu::StreamHandle)>& issue,
                             std::atomic<std::uint64_t>& word, std::uint64_t value);

    /// Names a GPU among all of the machine's, also those that this process does not see. Never 0.
    [[nodiscard]] std::uint64_t identity_of(int device);
    /// NCCL or RCCL; null, with the reason noted once, where there is none.
    [[nodiscard]] const ccl::Library* ccl();

    /// Collectives of different communicators that wait for each other's GPUs would wait for ever. Those of one node
    /// take turns (see CollectiveOp::has_turn), and may be under way by turns; one across nodes has no turn to take,
    /// and so is the only one of its process. False: not now.
    enum class LibraryUse : std::uint8_t { by_turns, alone };
    [[nodiscard]] bool use_library(LibraryUse use) noexcept;
    void end_use_of_library(LibraryUse use) noexcept;

    /// A word for a kernel to write to, of memory that stays until shut_down(); null when the runtime gives none.
    [[nodiscard]] std::atomic<std::uint64_t>* take_word();
    void give_back_word(std::atomic<std::uint64_t>* word) noexcept;

    /// Lets kernels write to shared memory; what is registered stays so until shut_down(), or until its control block
    /// retires.
    [[nodiscard]] bool register_memory(std::span<std::byte> memory);
    /// Takes a control block that nobody uses any more, whose own memory is registered: it is kept until that can be
    /// undone.
    void retire(std::unique_ptr<ControlBlock> control_block) noexcept;

    /// Waits for what is under way and gives everything back, while the runtime is still there. Safe to call twice.
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
    /// Gives up retired control blocks if that waits for nothing. Needs the lock.
    void give_up_retired(std::chrono::microseconds patience = {}) noexcept;
    [[nodiscard]] static std::uint64_t bytes_of(const std::vector<Fold>& folds,
                                                const std::vector<Copy>& copies) noexcept;
    /// Of a kernel or several that are about to be launched. Needs the lock.
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
    std::atomic<int> _library_uses{0};  ///< by turns; -1: alone
    bool _shut_down = false;
};

}  // namespace awaken::coll
