#include "tune.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/settings.h"
#include "gpu/gpu.h"
#include "gpu_measurements.h"
#include "preload.h"
#include "transfer/tuning.h"
#include "tuning_file.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

using transfer::Tuning;
using transfer::TuningFigure;

constexpr const char* kHelp =
    "Measures this machine's GPUs and writes the figures by which Awaken chooses its paths.\n"
    "\n"
    "  awaken tune [OPTIONS]\n"
    "\n"
    "  -o, --output FILE   the file to write; by default AWAKEN_TUNING, else awaken/tuning.conf in $XDG_CONFIG_HOME "
    "or\n"
    "                      ~/.config, where it is found by itself\n"
    "  --dry-run           prints the file instead of writing it\n"
    "  --quick             fewer sizes and repetitions\n"
    "  --emulate KIND:N    measures N emulated GPUs, which shows how this works and nothing else\n"
    "  -h, --help          prints this text\n"
    "\n"
    "It measures the first visible GPU, and the way between it and the second where there are two.\n";

/// A chunk is large enough when it reaches this part of the best bandwidth.
constexpr double kNearBest = 0.95;

struct Arguments {
    bool help = false;
    bool dry_run = false;
    bool quick = false;
    std::string output;
    std::string emulate;
};

Arguments parse(const std::span<char* const> words) {
    Arguments arguments;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string word = words[i];
        const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
        const std::string name = word.substr(0, equals);
        const auto value = [&]() -> std::string {
            std::string text = equals != std::string::npos ? word.substr(equals + 1)
                               : i + 1 < words.size()      ? words[++i]
                                                           : "";
            if (text.empty()) {
                throw Error(name + " is given without its argument", "see `awaken tune --help`");
            }
            return text;
        };
        if (name == "-o" || name == "--output") {
            arguments.output = value();
        } else if (name == "--emulate") {
            arguments.emulate = value();
        } else if (word == "--dry-run") {
            arguments.dry_run = true;
        } else if (word == "--quick") {
            arguments.quick = true;
        } else if (word == "-h" || word == "--help") {
            arguments.help = true;
        } else {
            throw Error("awaken tune has no option " + word, "see `awaken tune --help`");
        }
    }
    return arguments;
}

bool emulated() {
    const char* const emulate = std::getenv("AWAKEN_EMULATE");
    return emulate != nullptr && *emulate != '\0';
}

/// The loader reads LD_LIBRARY_PATH when a process starts, so the emulated drivers need a start of their own.
void start_again_for_emulation(const std::span<char* const> words) {
    const auto search_path = [] {
        const char* const path = std::getenv("LD_LIBRARY_PATH");
        return std::string(path != nullptr ? path : "");
    };
    const std::string before = search_path();
    use_emulation_if_asked();
    if (search_path() != before) {
        std::vector<std::string> command = {"awaken", "tune"};
        command.insert(command.end(), words.begin(), words.end());
        become(fs::read_symlink("/proc/self/exe"), command, "install Awaken again");
    }
}

gpu::Runtime& find_runtime(gpu::Choice choice) {
    if (choice == gpu::Choice::automatic) {
        const gpu::Vendor vendor = gpu::expected_vendor();
        choice = vendor == gpu::Vendor::cuda  ? gpu::Choice::cuda
                 : vendor == gpu::Vendor::hip ? gpu::Choice::hip
                                              : gpu::Choice::none;
    }
    std::string why_not = "this machine has no driver for one";
    gpu::Runtime& runtime = gpu::find(choice, &why_not);
    if (runtime.vendor() == gpu::Vendor::none) {
        throw Error("there is no GPU to measure (" + why_not + ")",
                    "run this on a machine with a GPU, or try it with --emulate cuda:2");
    }
    if (runtime.device_count() < 1) {
        throw Error("there is no GPU to measure (none is visible)", "see which devices the environment leaves visible");
    }
    return runtime;
}

[[gnu::format(printf, 1, 2)]] std::string format(const char* const pattern, ...) {
    std::va_list arguments;
    va_start(arguments, pattern);
    std::va_list again;
    va_copy(again, arguments);
    const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
    va_end(arguments);
    std::string text(static_cast<std::size_t>(std::max(length, 0)), '\0');
    std::vsnprintf(text.data(), text.size() + 1, pattern, again);
    va_end(again);
    return text;
}

/// "7.20 [7.10, 7.45]": the median, and the quartiles around it.
std::string with_spread(const Series& series) {
    return format("%.4g [%.4g, %.4g]", series.median(), series.quantile(0.25), series.quantile(0.75));
}

std::string size_text(const std::size_t bytes) {
    static const TuningFigure* const any_size = transfer::find_figure("small_bytes");
    Tuning tuning;
    tuning.small_bytes = bytes;
    return any_size->text(tuning);
}

/// The figure as files spell it, within its bounds.
TunedFigure tuned(const char* const name, const Tuning& tuning, std::string reason) {
    return {name, transfer::find_figure(name)->text(tuning), std::move(reason)};
}

TunedFigure choose_small_watch(const Series& small_copy) {
    constexpr double kTenthsOfMicroseconds = 10;
    Tuning tuning;
    const double tenths = std::max(1.0, std::round(small_copy.median() * kTenthsOfMicroseconds));
    tuning.small_watch = std::chrono::nanoseconds(static_cast<std::int64_t>(tenths) * 100);
    return tuned("small_watch_us", tuning,
                 "as long as a small copy to the host, which the watching may spare: " + with_spread(small_copy) +
                     " us, " + std::to_string(small_copy.count()) + " times");
}

/// The part of the best bandwidth that a size reaches in its worse direction.
double part_of_best(const ChunkBandwidth& one, const std::vector<ChunkBandwidth>& all) {
    double to_host = 0;
    double to_device = 0;
    for (const ChunkBandwidth& other : all) {
        to_host = std::max(to_host, other.to_host.median());
        to_device = std::max(to_device, other.to_device.median());
    }
    return std::min(one.to_host.median() / to_host, one.to_device.median() / to_device);
}

TunedFigure choose_chunk(const char* const name, std::size_t Tuning::* const member, const std::size_t depth,
                         const std::vector<ChunkBandwidth>& measured) {
    const auto chosen = std::find_if(measured.begin(), measured.end(), [&](const ChunkBandwidth& one) {
        return part_of_best(one, measured) >= kNearBest;
    });
    // Each direction may be best at a size of its own. Then this takes the best compromise.
    const auto& best = chosen != measured.end()
                           ? *chosen
                           : *std::max_element(measured.begin(), measured.end(), [&](const auto& a, const auto& b) {
                                 return part_of_best(a, measured) < part_of_best(b, measured);
                             });
    Tuning tuning;
    tuning.*member = best.chunk_bytes;
    return tuned(
        name, tuning,
        format("the smallest with %.0f %% of the best bandwidth, %zu under way: GB/s to the host %s, to the GPU "
               "%s, %zu times",
               100 * part_of_best(best, measured), depth, with_spread(best.to_host).c_str(),
               with_spread(best.to_device).c_str(), best.to_host.count()));
}

/// Whether the kernel is faster by more than the spread of either.
bool kernel_is_faster(const CopyTimes& times) {
    return times.kernel_us.quantile(0.75) < times.engine_us.quantile(0.25);
}

TunedFigure choose_kernel_copy(const std::vector<CopyTimes>& measured, const std::string& where) {
    Tuning tuning;
    const CopyTimes* last = nullptr;
    for (const CopyTimes& times : measured) {
        if (!kernel_is_faster(times)) {
            break;
        }
        last = &times;
    }
    tuning.kernel_copy_bytes = last != nullptr ? last->bytes : 0;
    const CopyTimes& shown = last != nullptr ? *last : measured.front();
    return tuned("kernel_copy_bytes", tuning,
                 format("%s %s: at size %s the kernel takes %s us, the copy engine %s us, %zu times",
                        last != nullptr ? "up to here the kernel is faster" : "the kernel is not faster", where.c_str(),
                        size_text(shown.bytes).c_str(), with_spread(shown.kernel_us).c_str(),
                        with_spread(shown.engine_us).c_str(), shown.kernel_us.count()));
}

void print_chunks(const std::size_t depth, const std::vector<ChunkBandwidth>& measured) {
    std::printf("\n# Chunks through pinned memory, %zu under way: GB/s (10^9 bytes), %zu times\n", depth,
                measured.front().to_host.count());
    std::printf("# %-8s %26s %26s\n", "Chunk", "to the host", "to the GPU");
    for (const ChunkBandwidth& one : measured) {
        std::printf("%-10s %26s %26s\n", size_text(one.chunk_bytes).c_str(), with_spread(one.to_host).c_str(),
                    with_spread(one.to_device).c_str());
    }
}

void print_copies(const std::string& where, const CopyComparison& comparison) {
    const std::vector<CopyTimes>& measured = comparison.sizes;
    if (!comparison.kernel_refusal.empty()) {
        std::printf("\n# Copies %s were not compared: %s\n", where.c_str(), comparison.kernel_refusal.c_str());
        return;
    }
    std::printf("\n# Copies %s, started and waited for: us, in turns, %zu to %zu times\n", where.c_str(),
                measured.back().engine_us.count(), measured.front().engine_us.count());
    std::printf("# %-8s %26s %26s  faster\n", "Size", "copy engine", "kernel");
    for (const CopyTimes& times : measured) {
        const bool engine = times.engine_us.quantile(0.75) < times.kernel_us.quantile(0.25);
        std::printf("%-10s %26s %26s  %s\n", size_text(times.bytes).c_str(), with_spread(times.engine_us).c_str(),
                    with_spread(times.kernel_us).c_str(),
                    kernel_is_faster(times) ? "kernel"
                    : engine                ? "copy engine"
                                            : "neither");
    }
}

/// The second GPU, if the first may read its memory; else `why_not` says why.
std::optional<int> reachable_peer(gpu::Runtime& runtime, std::string& why_not) {
    if (runtime.device_count() < 2) {
        why_not = "one GPU is visible";
        return std::nullopt;
    }
    bool can = false;
    require(runtime.can_access_peer(0, 1, can), "asking whether the GPUs reach each other");
    if (!can) {
        why_not = "GPU 0 cannot reach the memory of GPU 1";
        return std::nullopt;
    }
    require(runtime.enable_peer_access(0, 1), "letting GPU 0 read the memory of GPU 1");
    return 1;
}

Effort effort_for(const Arguments& arguments) {
    Effort effort;
    if (arguments.quick) {
        effort = {60, 7, 4, std::size_t{16} << 20, std::size_t{16} << 20, std::size_t{64} << 20};
    }
    if (emulated()) {
        // The figures of an emulated GPU mean nothing, so there is no use in waiting for them.
        effort.small_samples = std::min<std::size_t>(effort.small_samples, 30);
        effort.samples = std::min<std::size_t>(effort.samples, 5);
        effort.most_copy_bytes = std::size_t{64} << 10;
        effort.most_chunk_bytes = std::size_t{1} << 20;
        effort.pipeline_bytes = std::size_t{4} << 20;
    }
    return effort;
}

std::vector<TunedFigure> measure(gpu::Runtime& runtime, const Effort& effort) {
    constexpr int kDevice = 0;
    const Tuning tuning;
    std::vector<TunedFigure> figures;

    std::printf("# Medians, with the quartiles in brackets\n");
    const Series small_copy = measure_small_copy(runtime, kDevice, effort);
    std::printf("\n# A copy of 8 bytes to the host, started and waited for: us, %zu times\n%s\n", small_copy.count(),
                with_spread(small_copy).c_str());
    figures.push_back(choose_small_watch(small_copy));

    const auto ring = measure_chunks(runtime, kDevice, tuning.ring_chunks, effort);
    print_chunks(tuning.ring_chunks, ring);
    figures.push_back(choose_chunk("ring_chunk_bytes", &Tuning::ring_chunk_bytes, tuning.ring_chunks, ring));
    const auto network = measure_chunks(runtime, kDevice, tuning.network_window, effort);
    print_chunks(tuning.network_window, network);
    figures.push_back(
        choose_chunk("network_fragment_bytes", &Tuning::network_fragment_bytes, tuning.network_window, network));

    CopyComparison copies = measure_copies(runtime, kDevice, kDevice, effort);
    std::string where = "within a GPU";
    print_copies("within GPU 0", copies);
    std::string why_not;
    if (const std::optional<int> peer = reachable_peer(runtime, why_not)) {
        copies = measure_copies(runtime, kDevice, *peer, effort);
        where = "between two GPUs";
        print_copies("from GPU 1 to GPU 0", copies);
    } else {
        std::printf("\n# Copies between GPUs were not measured: %s\n", why_not.c_str());
    }
    if (copies.kernel_refusal.empty()) {
        figures.push_back(choose_kernel_copy(copies.sizes, where));
    }
    return figures;
}

void print_choices(const std::vector<TunedFigure>& figures, const std::string& model) {
    const Tuning before = Tuning::from_text(model, "", "", "", nullptr);
    std::printf("\n# What follows\n");
    for (const TunedFigure& figure : figures) {
        std::printf("%s = %s (built in: %s)\n    %s\n", figure.name.c_str(), figure.value.c_str(),
                    transfer::find_figure(figure.name)->text(before).c_str(), figure.reason.c_str());
    }
}

std::string file_to_write(const Arguments& arguments, const Settings& settings) {
    for (const std::string& file : {arguments.output, settings.tuning_file, Tuning::default_file(environ)}) {
        if (!file.empty()) {
            return file;
        }
    }
    throw Error("there is no place for the tuning file: neither HOME nor XDG_CONFIG_HOME is set",
                "name the file with -o FILE");
}

}  // namespace

int tune(const std::span<char* const> words) {
    const Arguments arguments = parse(words);
    if (arguments.help) {
        std::fputs(kHelp, stdout);
        return 0;
    }
    if (!arguments.emulate.empty()) {
        set_variable("AWAKEN_EMULATE", arguments.emulate);
    }
    const Settings settings = Settings::from_environment(environ);
    start_again_for_emulation(words);
    const std::string file = file_to_write(arguments, settings);
    const std::string old_text = read_if_there(file);
    gpu::Runtime& runtime = find_runtime(settings.gpu);
    gpu::DeviceInfo device;
    require(runtime.device_info(0, device), "asking for the GPU's name");
    // Refuses a file that is wrong, or that cannot be written, before the measurements take minutes.
    static_cast<void>(with_figures(old_text, file, device.name, {}));
    const bool writes = !arguments.dry_run && !(emulated() && arguments.output.empty());
    const fs::path place = writes ? place_to_write(file) : fs::path();

    std::printf("# %s, %d visible, %s%s\n", device.name.c_str(), runtime.device_count(),
                runtime.versions().runtime.c_str(),
                emulated() ? "\n# An emulated GPU: these figures say nothing about any real one" : "");
    const std::vector<TunedFigure> figures = measure(runtime, effort_for(arguments));
    print_choices(figures, device.name);

    const std::string text = with_figures(old_text, file, device.name, figures);
    if (arguments.dry_run) {
        std::printf("\n# %s would be\n%s", file.c_str(), text.c_str());
    } else if (!writes) {
        std::printf("\n# Nothing is written: the GPU is emulated (-o FILE writes all the same)\n");
    } else {
        write_tuning_file(place, text);
        std::printf("\n# Written to %s\n", file.c_str());
    }
    return 0;
}

}  // namespace awaken::cli
