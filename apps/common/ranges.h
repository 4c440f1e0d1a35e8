// SPDX-License-Identifier: Apache-2.0
// Named stretches of a program's time, for whatever can show them:
//
//   apps::Range range("stencil");   // until the end of the scope; ranges may lie in one another
//
// A range appears in the timeline of NVIDIA's tools (NVTX), of AMD's (ROCTX) and of Awaken (AWAKEN_TRACE), whichever of
// them are there when the program runs: none is needed to build it. Without any of them, print_ranges() still gives the
// table of wall-clock times.
#pragma once

#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "program.h"

namespace apps {

/// How one tool is told of ranges; both null where the tool is not there. All three vendors' functions have these
/// types: nvtxRangePushA and nvtxRangePop (nvToolsExt.h), roctxRangePushA and roctxRangePop (roctx.h of roctracer and
/// of rocprofiler-sdk). They return the depth of the range, or a negative number, which nobody needs here.
struct RangeTool {
    int (*push)(const char* name) = nullptr;
    int (*pop)() = nullptr;

    /// Takes the two functions from a library, or from what the process has loaded (RTLD_DEFAULT). Needs both.
    [[nodiscard]] bool find(void* library, const char* push_name, const char* pop_name) {
        push = reinterpret_cast<int (*)(const char*)>(dlsym(library, push_name));
        pop = reinterpret_cast<int (*)()>(dlsym(library, pop_name));
        if (push == nullptr || pop == nullptr) {
            *this = {};
        }
        return push != nullptr;
    }
    /// The same from the first of the libraries that can be opened. They are never closed: tools stay to the end.
    [[nodiscard]] bool find(std::initializer_list<const char*> names, const char* push_name, const char* pop_name) {
        for (const char* const name : names) {
            void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
            if (library != nullptr && find(library, push_name, pop_name)) {
                return true;
            }
        }
        return false;
    }
};

/// NVTX 3 is a header without a library: the program carries tables of function pointers, and hands them to the library
/// that a tool names in NVTX_INJECTION64_PATH, which fills in what it wants to hear of. This is that hand-over, with
/// the numbers of nvtx3/nvtxDetail/nvtxTypes.h (version 3, which older and newer tools keep to).
namespace nvtx {

using Function = void (*)();
constexpr std::uint32_t export_callbacks = 1, export_version = 3;           // NvtxExportTableID
constexpr int module_core = 1;                                              // NvtxCallbackModule
constexpr std::array<unsigned, 7> module_sizes = {0, 16, 9, 15, 7, 16, 7};  // core, CUDA, OpenCL, cudart, core 2, sync
constexpr std::size_t range_push = 9, range_pop = 11;                       // NvtxCallbackIdCore: RangePushA, RangePop

struct Module {
    std::array<Function, 17> functions = {};
    std::array<Function*, 17> entries = {};  // entry 0 is null: a module's functions are counted from 1
};
inline std::array<Module, module_sizes.size()> modules;

inline int module_table(int module, Function*** table, unsigned* size) {
    if (module < module_core || module >= static_cast<int>(modules.size())) {
        return 0;
    }
    const auto index = static_cast<std::size_t>(module);
    if (table != nullptr) {
        *table = modules[index].entries.data();
    }
    if (size != nullptr) {
        *size = module_sizes[index];
    }
    return 1;
}
inline void set_tool_version(std::uint32_t) {}

/// What the tool asks first: pointers to these two structs.
inline const void* export_table(std::uint32_t id) {
    struct Callbacks {
        std::size_t struct_size;
        int (*module_table)(int, Function***, unsigned*);
    };
    struct Version {
        std::size_t struct_size;
        std::uint32_t version;
        std::uint32_t reserved;
        void (*set_tool_version)(std::uint32_t);
    };
    static const Callbacks callbacks = {sizeof(Callbacks), module_table};
    static const Version version = {sizeof(Version), 3, 0, set_tool_version};
    if (id == export_callbacks) {
        return &callbacks;
    }
    if (id == export_version) {
        return &version;
    }
    return nullptr;
}

/// The functions of the tool in NVTX_INJECTION64_PATH, if there is one.
inline RangeTool injected() {
    const char* const path = std::getenv("NVTX_INJECTION64_PATH");
    void* const library = path != nullptr && *path != '\0' ? dlopen(path, RTLD_LAZY) : nullptr;
    if (library == nullptr) {
        return {};
    }
    using Initialize = int (*)(const void* (*)(std::uint32_t));
    const auto initialize = reinterpret_cast<Initialize>(dlsym(library, "InitializeInjectionNvtx2"));
    for (Module& module : modules) {
        for (std::size_t i = 1; i < module_sizes[static_cast<std::size_t>(&module - modules.data())]; ++i) {
            module.entries[i] = &module.functions[i];
        }
    }
    if (initialize == nullptr || initialize(export_table) == 0) {
        return {};
    }
    const Module& core = modules[module_core];
    RangeTool tool;
    tool.push = reinterpret_cast<int (*)(const char*)>(core.functions[range_push]);
    tool.pop = reinterpret_cast<int (*)()>(core.functions[range_pop]);
    return tool.push != nullptr && tool.pop != nullptr ? tool : RangeTool();
}

}  // namespace nvtx

/// The wall-clock time that one rank spent in the ranges of one name.
struct RangeTime {
    std::string name;
    std::int64_t count = 0;
    std::int64_t total_ns = 0;
    std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
    std::int64_t most_ns = 0;

    void add(const RangeTime& other) {
        count += other.count;
        total_ns += other.total_ns;
        least_ns = std::min(least_ns, other.least_ns);
        most_ns = std::max(most_ns, other.most_ns);
    }
};

/// Adds a time to the one of the same name, which comes last when it is new.
inline void add_range_time(std::vector<RangeTime>& times, const RangeTime& time) {
    const auto same = std::find_if(times.begin(), times.end(), [&](const RangeTime& t) { return t.name == time.name; });
    if (same != times.end()) {
        same->add(time);
    } else {
        times.push_back(time);
    }
}

/// The tools that were found, and what this rank's ranges have taken so far.
class Ranges {
  public:
    static Ranges& instance() {
        static Ranges ranges;
        return ranges;
    }

    /// While it is paused, no tool hears of ranges that begin, and no time of theirs is taken.
    void pause() { ++_pauses; }
    void resume() { --_pauses; }
    [[nodiscard]] bool is_paused() const { return _pauses > 0; }

    void push(const char* name) const {
        for (const RangeTool& tool : _tools) {
            tool.push(name);
        }
    }
    void pop() const {
        for (auto tool = _tools.rbegin(); tool != _tools.rend(); ++tool) {
            tool->pop();
        }
    }
    void add(const char* name, std::int64_t elapsed_ns) {
        const std::scoped_lock lock(_mutex);
        add_range_time(_times, {name, 1, elapsed_ns, elapsed_ns, elapsed_ns});
    }
    /// In the order in which the names were first complete.
    [[nodiscard]] std::vector<RangeTime> times() {
        const std::scoped_lock lock(_mutex);
        return _times;
    }

  private:
    Ranges() {
        // One library for each vendor, or a range would be there twice. A tool that is attached comes before a library
        // that merely is installed.
        RangeTool tool = nvtx::injected();
        if (tool.push != nullptr ||
            tool.find({"libnvToolsExt.so.1", "libnvToolsExt.so"}, "nvtxRangePushA", "nvtxRangePop")) {
            _tools.push_back(tool);
        }
        if (tool.find(RTLD_DEFAULT, "roctxRangePushA", "roctxRangePop") ||
            tool.find({"librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "librocprofiler-sdk-roctx.so",
                       "libroctx64.so.4", "libroctx64.so"},
                      "roctxRangePushA", "roctxRangePop")) {
            _tools.push_back(tool);
        }
        if (tool.find(RTLD_DEFAULT, "awaken_range_push", "awaken_range_pop")) {
            _tools.push_back(tool);
        }
    }

    std::vector<RangeTool> _tools;
    std::atomic<int> _pauses = 0;
    std::mutex _mutex;
    std::vector<RangeTime> _times;
};

/// A range from here to the end of the scope. Ranges of one thread end in the reverse order of their beginnings, which
/// scopes give by themselves. Costs a look at the clock or two and what the tools take.
class Range {
  public:
    /// `name` has to stay valid as long as the range; a string literal does.
    explicit Range(const char* name) : _name(Ranges::instance().is_paused() ? nullptr : name) {
        if (_name == nullptr) {
            return;
        }
        Ranges::instance().push(_name);
        _begin = std::chrono::steady_clock::now();
    }
    ~Range() {
        if (_name == nullptr) {
            return;
        }
        const auto elapsed = std::chrono::steady_clock::now() - _begin;
        Ranges::instance().pop();
        Ranges::instance().add(_name, std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
    }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

  private:
    const char* _name;  ///< null: it began in a pause
    std::chrono::steady_clock::time_point _begin;
};

/// A range in place of all that would be told within it: for work that a program does beside what it is timed for.
class RangeOfOtherWork {
  public:
    explicit RangeOfOtherWork(const char* name) : _range(name) { Ranges::instance().pause(); }
    ~RangeOfOtherWork() { Ranges::instance().resume(); }
    RangeOfOtherWork(const RangeOfOtherWork&) = delete;
    RangeOfOtherWork& operator=(const RangeOfOtherWork&) = delete;

  private:
    Range _range;
};

/// Collects every rank's times at rank 0, which gets one list per rank; the others get none. Collective.
[[nodiscard]] inline std::vector<std::vector<RangeTime>> gather_range_times() {
    // For each range its name with a null byte, and its four figures.
    std::vector<char> own;
    for (const RangeTime& time : Ranges::instance().times()) {
        own.insert(own.end(), time.name.c_str(), time.name.c_str() + time.name.size() + 1);
        for (const std::int64_t figure : {time.count, time.total_ns, time.least_ns, time.most_ns}) {
            const auto* const bytes = reinterpret_cast<const char*>(&figure);
            own.insert(own.end(), bytes, bytes + sizeof figure);
        }
    }
    const bool is_root = rank_of_world() == 0;
    const auto ranks = static_cast<std::size_t>(is_root ? size_of_world() : 0);
    int length = static_cast<int>(own.size());
    std::vector<int> lengths(ranks);
    MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    std::vector<int> offsets(ranks);
    int total = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        offsets[rank] = total;
        total += lengths[rank];
    }
    std::vector<char> all(static_cast<std::size_t>(total));
    MPI_Gatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, 0, MPI_COMM_WORLD);

    std::vector<std::vector<RangeTime>> result(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const char* at = all.data() + offsets[rank];
        const char* const end = at + lengths[rank];
        while (at < end) {
            RangeTime time;
            time.name = at;
            at += time.name.size() + 1;
            for (std::int64_t* const figure : {&time.count, &time.total_ns, &time.least_ns, &time.most_ns}) {
                std::memcpy(figure, at, sizeof *figure);
                at += sizeof *figure;
            }
            result[rank].push_back(time);
        }
    }
    return result;
}

/// Prints the wall-clock table of all ranges: a row for each rank, and one over all of them, in which the count and the
/// total are sums. Rank 0 prints, on stdout; every line begins with #. Collective; call it outside of any range.
inline void print_ranges(const std::string& program) {
    const std::vector<std::vector<RangeTime>> of_rank = gather_range_times();
    std::vector<RangeTime> over_ranks;
    for (const std::vector<RangeTime>& times : of_rank) {
        for (const RangeTime& time : times) {
            add_range_time(over_ranks, time);
        }
    }
    if (over_ranks.empty()) {
        return;
    }

    std::size_t width = std::strlen("range");
    for (const RangeTime& time : over_ranks) {
        width = std::max(width, time.name.size());
    }
    const auto print_row = [&](const RangeTime& time, const std::string& rank) {
        const double total = static_cast<double>(time.total_ns) * 1e-9;
        std::printf("# %-*s %5s %10lld %13.6f %13.6f %13.6f %13.6f\n", static_cast<int>(width), time.name.c_str(),
                    rank.c_str(), static_cast<long long>(time.count), total, total / static_cast<double>(time.count),
                    static_cast<double>(time.least_ns) * 1e-9, static_cast<double>(time.most_ns) * 1e-9);
    };
    std::printf("#\n# %s: wall-clock seconds of its ranges\n", program.c_str());
    std::printf("# %-*s %5s %10s %13s %13s %13s %13s\n", static_cast<int>(width), "range", "rank", "count", "total",
                "mean", "min", "max");
    for (const RangeTime& sum : over_ranks) {
        for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
            for (const RangeTime& time : of_rank[rank]) {
                if (time.name == sum.name) {
                    print_row(time, std::to_string(rank));
                }
            }
        }
        print_row(sum, "all");
    }
    std::fflush(stdout);
}

}  // namespace apps
