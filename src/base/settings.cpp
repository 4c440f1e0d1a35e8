// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "base/spelling.h"

namespace awaken {
namespace {

constexpr std::string_view kPrefix = "AWAKEN";

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& letter : result) {
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
    return result;
}

std::string quoted(const std::string& name, const std::string& value) {
    return name + "=" + excerpt(value);
}

/// Empty for a text that is no word for on or off.
std::optional<bool> find_switch(const std::string& value) {
    const std::string text = lower(value);
    for (const char* const yes : {"1", "on", "yes", "true"}) {
        if (text == yes) {
            return true;
        }
    }
    for (const char* const no : {"0", "off", "no", "false"}) {
        if (text == no) {
            return false;
        }
    }
    return std::nullopt;
}

bool parse_switch(const std::string& name, const std::string& value) {
    if (const std::optional<bool> found = find_switch(value)) {
        return *found;
    }
    throw Error(quoted(name, value) + " is neither on nor off", "use 1 or 0");
}

/// A folder; empty for none.
std::string parse_folder(const std::string& name, const std::string& value) {
    const std::optional<bool> found = find_switch(value);
    if (found.value_or(false)) {
        throw Error(quoted(name, value) + " names no folder", "give the folder, such as run1; ./" + value + " is one");
    }
    return found ? "" : value;
}

/// One of the words that a setting takes, and what it stands for.
template <typename Value>
struct Word {
    const char* text;
    Value value;
};

/// The value that the word `value` stands for. Throws Error, in which `what` names the thing that the value is not.
template <typename Value>
Value parse_word(const std::string& name, const std::string& value, const char* what,
                 std::initializer_list<Word<Value>> words) {
    const std::string text = lower(value);
    std::string allowed;
    for (const Word<Value>& word : words) {
        if (text == word.text) {
            return word.value;
        }
        const bool last = &word == words.end() - 1;
        allowed += (allowed.empty() ? "" : last ? " or " : ", ") + std::string(word.text);
    }
    throw Error(quoted(name, value) + " is not " + what, "use " + allowed);
}

gpu::Choice parse_gpu(const std::string& name, const std::string& value) {
    return parse_word<gpu::Choice>(name, value, "a GPU runtime",
                                   {{"auto", gpu::Choice::automatic},
                                    {"cuda", gpu::Choice::cuda},
                                    {"hip", gpu::Choice::hip},
                                    {"none", gpu::Choice::none}});
}

NodePath parse_path(const std::string& name, const std::string& value) {
    return parse_word<NodePath>(name, value, "a path between GPUs",
                                {{"auto", NodePath::automatic},
                                 {"direct", NodePath::direct},
                                 {"ring", NodePath::ring},
                                 {"staged", NodePath::staged}});
}

CopyEngine parse_copy(const std::string& name, const std::string& value) {
    return parse_word<CopyEngine>(
        name, value, "a way to copy between GPUs",
        {{"auto", CopyEngine::automatic}, {"engine", CopyEngine::engine}, {"kernel", CopyEngine::kernel}});
}

NativeGpu parse_native_gpu(const std::string& name, const std::string& value) {
    return parse_word<NativeGpu>(name, value, "an answer to whether the MPI takes device memory",
                                 {{"auto", NativeGpu::automatic}, {"yes", NativeGpu::yes}, {"no", NativeGpu::no}});
}

DefaultStream parse_default_stream(const std::string& name, const std::string& value) {
    return parse_word<DefaultStream>(name, value, "a way to treat the default stream",
                                     {{"wait", DefaultStream::wait},
                                      {"trust", DefaultStream::trust},
                                      {"order", DefaultStream::order},
                                      {"order,check", DefaultStream::order_check}});
}

int parse_nodes(const std::string& name, const std::string& value) {
    int nodes = 0;
    const char* const end = value.data() + value.size();
    const auto [stop, problem] = std::from_chars(value.data(), end, nodes);
    if (problem != std::errc{} || stop != end || nodes < 1) {
        throw Error(quoted(name, value) + " is not a number of nodes", "use a whole number from 1 on");
    }
    return nodes;
}

/// The known name that `name` most likely stands for; empty when none is near.
std::string nearest_name(const std::string& name) {
    constexpr std::size_t kFarthest = 4;
    std::string nearest;
    std::size_t distance = kFarthest + 1;
    for (const auto* const table : {&Settings::descriptions(), &Settings::test_switches()}) {
        for (const SettingDescription& known : *table) {
            const std::size_t candidate = edit_distance(name, known.name);
            if (candidate < distance) {
                distance = candidate;
                nearest = known.name;
            }
        }
    }
    return nearest;
}

}  // namespace

std::size_t parse_bytes(const std::string& text, const std::string& what) {
    const auto refuse = [&](const std::string& why) -> Error {
        return {quoted(what, text) + " " + why, "use a number of bytes with an optional K, M or G, such as 64M"};
    };
    std::size_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data(), end, value);
    if (problem == std::errc::result_out_of_range) {
        throw refuse("is too large");
    }
    constexpr std::string_view kSuffixes = "kmg";
    unsigned shift = 0;
    if (problem == std::errc() && stop != end) {
        const std::size_t suffix = kSuffixes.find(lower({stop, end}));
        shift = suffix < kSuffixes.size() ? 10 * (static_cast<unsigned>(suffix) + 1) : 0;
    }
    if (problem != std::errc() || (stop != end && (shift == 0 || end - stop != 1))) {
        throw refuse("is not a number of bytes");
    }
    if (value > (std::numeric_limits<std::size_t>::max() >> shift)) {
        throw refuse("is too large");
    }
    return value << shift;
}

const std::vector<SettingDescription>& Settings::descriptions() {
    // Leaked, so that other code can read it while static objects are destroyed.
    static const auto* const table = new std::vector<SettingDescription>{
        {"AWAKEN", "1 | 0", "1",
         "0 runs the program without the layer; where it is linked, all calls are passed through"},
        {"AWAKEN_GPU", "auto | cuda | hip | none", "auto",
         "GPU runtime to use; auto takes the one that the program has loaded, cuda and hip load it if need be"},
        {"AWAKEN_PINNED_POOL", "bytes, with K, M or G", "64M",
         "most pinned host memory that each rank keeps for staging; what does not fit goes through ordinary memory"},
        {"AWAKEN_REPORT", "0 | 1 | file name", "0",
         "at MPI_Finalize, report calls, bytes, time and paths: 1 as text on stderr, or to a file (*.json: as JSON)"},
        {"AWAKEN_TRACE", "folder | 0", "",
         "record a timeline of every rank's MPI calls, copies, kernels and ranges, and write it to this folder at "
         "MPI_Finalize; the same on all ranks"},
        {"AWAKEN_TRACE_LIMIT", "bytes, with K, M or G", "64M",
         "memory for a rank's events (56 bytes each); later ones are counted, and not kept"},
        {"AWAKEN_CHECK", "1 | 0", "0",
         "check each buffer against its allocation, and a collective's buffers for overlap"},
        {"AWAKEN_MPI", "path", "",
         "the MPI library to use when the program has loaded none by itself; otherwise it has no effect"},
        {"AWAKEN_UCX", "folder", "",
         "a UCX with GPU support that the MPI uses instead of its own, such as that of pip install libucx-cu12; "
         "awaken exec puts it first"},
        {"AWAKEN_JOB", "text", "",
         "a name that all ranks of the job share and no other job has, where the launcher gives none"},
        {"AWAKEN_PATH", "auto | direct | ring | staged", "auto",
         "how messages between GPUs of one node travel: direct does not use the shared ring, ring never maps another "
         "process's memory, staged does neither"},
        {"AWAKEN_DEFAULT_STREAM", "wait | trust | order | order,check", "wait",
         "whether MPI calls wait for kernels in the default stream of a buffer's GPU; trust, for programs that "
         "synchronise before they call MPI, makes small messages faster; order makes messages parts of that stream, "
         "and order,check shows programs that look at received data too early"},
        {"AWAKEN_NODES", "1 | 0", "1",
         "0 stages messages between nodes instead of pipelining them; needed when some ranks run without Awaken"},
        {"AWAKEN_COLLECTIVES", "rows", "",
         "which algorithm does which collective, ahead of the built-in table: \"allreduce ranks=4- bytes=64M- : ccl; "
         "...\"; has no effect with AWAKEN_PATH=ring, which stages all"},
        {"AWAKEN_REPRODUCIBLE", "1 | 0", "0",
         "reductions fold in the order of the ranks, so that their bits depend on nothing but the values and the "
         "number "
         "of ranks; the same on all ranks"},
        {"AWAKEN_NATIVE_GPU", "auto | yes | no", "auto", "whether the MPI underneath takes device pointers by itself"},
        {"AWAKEN_TUNE", "name=value,...", "",
         "figures of the tuning, such as network_bytes=1M,copy_first_bytes=0; the same on all ranks"},
        {"AWAKEN_CCL", "path", "", "the NCCL or RCCL library to use, instead of the one that is found"},
        {"AWAKEN_LIBRARY", "path", "", "the Awaken library that awaken exec preloads, instead of the installed one"},
        {"AWAKEN_EMULATE", "cuda:N | hip:N | hip5:N | hip6:N | hip7:N", "",
         "awaken exec gives the program an emulated GPU driver with N devices; hip5 to hip7 as that version of ROCm "
         "only"},
        {"AWAKEN_EMULATE_MEMORY", "bytes, with K, M, G or T", "4G", "emulated driver: memory of each device"},
        {"AWAKEN_EMULATE_LINKS",
         "mi250x | mi300a | dgx | summit | pcie | nvlink:N | nvswitch:N | xgmi:N | matrix:ROW/ROW/...",
         "nvswitch:18 or xgmi:4", "emulated driver: how its GPUs are connected, as management libraries report it"},
        {"AWAKEN_EMULATE_CONNECTIONS", "number, 1 to 32", "8",
         "emulated driver: with 1, a stream that waits for a value in memory holds up all streams of its context"},
    };
    return *table;
}

const std::vector<SettingDescription>& Settings::test_switches() {
    static const auto* const table = new std::vector<SettingDescription>{
        {"AWAKEN_TEST_COPY", "auto | engine | kernel", "auto",
         "what copies between GPUs: the copy engines, a kernel, or the engines but for many small copies at a time"},
        {"AWAKEN_TEST_CPU_COPY", "1 | 0", "1",
         "0 keeps the CPU from copying small messages where it reaches device memory"},
        {"AWAKEN_TEST_KERNELS", "path", "",
         "the file of kernels that were compiled before, instead of the installed one; 'none': there is none"},
        {"AWAKEN_TEST_TUNE", "name=value,...", "", "figures that are the same on every machine, such as ring_chunks=2"},
        {"AWAKEN_TEST_NODES", "number", "1",
         "the ranks of a node behave as if they were on so many nodes; for tests and comparisons"},
        {"AWAKEN_TEST_FAULTS", "comma-separated faults", "",
         "emulated driver: failures to inject, such as ipc-open or no-peer"},
        {"AWAKEN_TEST_DELAY_US", "microseconds", "200",
         "emulated driver: how late operations are that the real runtimes return early from"},
        {"AWAKEN_TEST_DELAYS", "seed:microseconds", "",
         "emulated driver: operations of streams are late at random, by up to so many microseconds"},
        {"AWAKEN_TEST_QUEUE", "number", "1024",
         "emulated driver: how many operations a stream has room for before calls wait"},
        {"AWAKEN_TEST_IPC_OPEN_US", "microseconds[+microseconds per GiB]", "0",
         "emulated driver: how long it takes to map memory of another process"},
        {"AWAKEN_TEST_BUSY", "wait | error", "wait",
         "emulated driver: what becomes of calls that wait for all work of a GPU, such as cudaFree, while there is "
         "some"},
    };
    return *table;
}

Settings Settings::from_environment(char** environment) {
    Settings settings;
    for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        if (text.substr(0, kPrefix.size()) != kPrefix) {
            continue;
        }
        const std::size_t equals = text.find('=');
        if (equals == std::string_view::npos) {
            continue;
        }
        const std::string name(text.substr(0, equals));
        const std::string value(text.substr(equals + 1));
        // Names such as AWAKENING belong to somebody else.
        if (name.size() > kPrefix.size() && name[kPrefix.size()] != '_') {
            continue;
        }

        const auto is_in = [&name](const std::vector<SettingDescription>& known) {
            return std::any_of(known.begin(), known.end(),
                               [&name](const SettingDescription& setting) { return name == setting.name; });
        };
        if (!is_in(descriptions()) && !is_in(test_switches())) {
            const std::string nearest = nearest_name(name);
            throw Error(name + " is not a setting of Awaken",
                        nearest.empty() ? "unset it; awaken exec --settings lists all settings"
                                        : "did you mean " + nearest + "? awaken exec --settings lists all settings");
        }
        // A variable that is set but empty counts as not set: shells and job scripts switch variables off in this way.
        if (value.empty()) {
            continue;
        }

        if (name == "AWAKEN") {
            settings.enabled = parse_switch(name, value);
        } else if (name == "AWAKEN_GPU") {
            settings.gpu = parse_gpu(name, value);
        } else if (name == "AWAKEN_PINNED_POOL") {
            settings.pinned_pool_bytes = parse_bytes(value, name);
        } else if (name == "AWAKEN_REPORT") {
            const std::optional<bool> found = find_switch(value);
            settings.report = found.value_or(true);
            if (!found) {
                settings.report_file = value;
            }
        } else if (name == "AWAKEN_TRACE") {
            settings.trace_folder = parse_folder(name, value);
        } else if (name == "AWAKEN_TRACE_LIMIT") {
            settings.trace_limit_bytes = parse_bytes(value, name);
        } else if (name == "AWAKEN_CHECK") {
            settings.check = parse_switch(name, value);
        } else if (name == "AWAKEN_REPRODUCIBLE") {
            settings.reproducible = parse_switch(name, value);
        } else if (name == "AWAKEN_MPI") {
            settings.mpi_library = value;
        } else if (name == "AWAKEN_JOB") {
            settings.job = value;
        } else if (name == "AWAKEN_PATH") {
            settings.path = parse_path(name, value);
        } else if (name == "AWAKEN_TEST_COPY") {
            settings.copy = parse_copy(name, value);
        } else if (name == "AWAKEN_DEFAULT_STREAM") {
            settings.default_stream = parse_default_stream(name, value);
        } else if (name == "AWAKEN_TEST_CPU_COPY") {
            settings.cpu_copy = parse_switch(name, value);
        } else if (name == "AWAKEN_NODES") {
            settings.nodes = parse_switch(name, value);
        } else if (name == "AWAKEN_TEST_NODES") {
            settings.pretended_nodes = parse_nodes(name, value);
        } else if (name == "AWAKEN_COLLECTIVES") {
            settings.collectives = value;
        } else if (name == "AWAKEN_NATIVE_GPU") {
            settings.native_gpu = parse_native_gpu(name, value);
        }
        // The others belong to transfer::Tuning, to awaken exec and to the emulated driver, which check them
        // themselves.
    }
    return settings;
}

}  // namespace awaken
