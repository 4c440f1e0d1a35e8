// SPDX-License-Identifier: Apache-2.0
#include "call/write_report.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/input_file.h"
#include "base/output_file.h"
#include "call/layer.h"
#include "report/totals.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// How long rank 0 waits at the end for the figures of the others before it reports only its own. Ranks without a
/// report (another environment, no layer) never answer.
constexpr int kGatherSeconds = 30;

std::string host_name() {
    char name[256] = {};
    return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

/// What AWAKEN_DEFAULT_STREAM=trust would save this process, or why it must not be set. Empty where it hardly matters.
std::string trust_advice(const gpu::Runtime& runtime) {
    const gpu::Runtime::StreamQuestions questions = runtime.stream_questions();
    constexpr std::uint64_t kFew = 100;
    if (questions.asked < kFew) {
        return {};
    }
    const std::string asked = "Awaken queried the default stream " + std::to_string(questions.asked) + " times";
    if (questions.waited_long > questions.asked / kFew) {
        return asked + ", and a message had to wait for kernels of the program " +
               std::to_string(questions.waited_long) + " times: keep the default, AWAKEN_DEFAULT_STREAM=wait";
    }
    const double total = static_cast<double>(questions.time.count());
    char text[200];
    snprintf(text, sizeof text,
             ", %.2f us each, %.2f ms in all: AWAKEN_DEFAULT_STREAM=trust saves that in a program that synchronises "
             "before it calls MPI",
             total / static_cast<double>(questions.asked) / 1e3, total / 1e6);
    return asked + text;
}

/// What the report says of this process and its environment.
report::Identity identity_of(const Layer& owner) {
    const loader::Binding& binding = owner.binding;
    const Settings& settings = owner.settings;
    report::Identity identity;
    identity.rank = owner.world_rank();
    identity.size = owner.world_size();
    identity.host = host_name();
    identity.mpi_library = binding.path;
    identity.mpi_was_chosen = binding.was_chosen;
    identity.mpi_version = binding.version;
    identity.abi = loader::to_string(binding.abi);
    if (!binding.passed_over.empty()) {
        identity.notes.push_back("AWAKEN_MPI=" + binding.passed_over +
                                 " had no effect: the program brought its own MPI, which is the one in use");
    }
    if (settings.path == NodePath::ring && !settings.collectives.empty()) {
        identity.notes.emplace_back(
            "AWAKEN_COLLECTIVES had no effect: AWAKEN_PATH=ring stages the collectives on device memory");
    }
    gpu::Runtime* const runtime = owner.known_gpu();
    if (runtime == nullptr) {
        identity.gpu =
            settings.gpu == gpu::Choice::none ? "none (AWAKEN_GPU=none)" : "none: the program loaded no GPU runtime";
        return identity;
    }
    identity.gpu = runtime->versions().description;
    if (settings.default_stream == DefaultStream::trust) {
        identity.gpu += "; kernels in the default stream are not waited for (AWAKEN_DEFAULT_STREAM=trust)";
    }
    if (is_order(settings.default_stream)) {
        identity.notes.push_back(
            std::to_string(owner.ordered.load()) +
            " sends, receives and collectives of this rank went in the order of the default stream, and " +
            std::to_string(owner.waited.load()) + " waited for it (AWAKEN_DEFAULT_STREAM=order)");
    } else if (std::string advice = trust_advice(*runtime); !advice.empty()) {
        identity.notes.push_back(std::move(advice));
    }
    const coll::Choices& collectives = owner.collectives;
    if (const std::uint64_t kernels = collectives.folded_by_kernels.load(),
        exchanged = collectives.exchanged_in_rank_order.load();
        kernels + exchanged != 0) {
        identity.notes.push_back("reductions of this rank that were folded in the order of the ranks: " +
                                 std::to_string(kernels) + " by kernels, " + std::to_string(exchanged) + " by the CPU");
    }
    for (int device = 0; device < runtime->device_count(); ++device) {
        gpu::DeviceInfo info;
        if (runtime->device_info(device, info).ok()) {
            identity.devices.push_back(info.name + " (" + info.architecture + ", " + info.pci_bus_id + ")");
        }
    }
    identity.native_gpu = owner.native_gpu.who_says();
    const std::string between = owner.collectives.between_nodes();
    if (owner.collectives.were_used()) {
        std::string rest = owner.collectives.selection.text();
        for (std::size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
            identity.collectives.push_back(rest.substr(0, end));
            rest.erase(0, end + 1);
        }
    }
    if (!between.empty()) {
        identity.collectives.push_back(between);
    }
    return identity;
}

/// stdout or stderr where the path leads to it, as /dev/stderr does; else -1. What is behind it is in use already, is
/// not opened again, and keeps what it has.
int standard_stream(const struct stat& status) {
    for (const int stream : {STDERR_FILENO, STDOUT_FILENO}) {
        struct stat own{};
        if (fstat(stream, &own) == 0 && own.st_dev == status.st_dev && own.st_ino == status.st_ino) {
            return stream;
        }
    }
    return -1;
}

/// Writes the text into a regular file, /dev/null or a standard stream. Nothing else is opened: a pipe may have no
/// reader, and a device do anything. Returns why it could not, or nothing.
std::string write_text(const std::string& path, const std::string& text) {
    struct stat status{};
    if (stat(path.c_str(), &status) == 0) {
        if (const int stream = standard_stream(status); stream >= 0) {
            return write_all(stream, text) ? "" : std::strerror(errno);
        }
        if (const char* const kind = other_kind(status); *kind != '\0' && !is_null_device(status)) {
            return kind;
        }
    }
    constexpr mode_t kFileMode = 0666;  // and the user's umask
    // O_NONBLOCK: something else may have taken its place.
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, kFileMode);
    if (file < 0) {
        return std::strerror(errno);
    }
    std::string why = fstat(file, &status) != 0 ? std::strerror(errno) : other_kind(status);
    if (is_null_device(status)) {
        why.clear();
    } else if (why.empty() && (ftruncate(file, 0) != 0 || !write_all(file, text))) {
        why = std::strerror(errno);
        // Half a report must not pass for one.
        static_cast<void>(!ftruncate(file, 0));
    }
    // Some file systems say only now that there is no room.
    return close(file) != 0 && why.empty() ? std::strerror(errno) : why;
}

}  // namespace

void write_report(Layer& owner, const bool world_model) {
    const Native& native = owner.real;
    const int rank = owner.world_rank(), size = owner.world_size();
    report::given.store(true, std::memory_order_relaxed);
    report::Identity mine = identity_of(owner);
    if (owner.known_gpu() != nullptr && size > 1 && owner.node_peers.link() == nullptr) {
        owner.ledger.add_fallback("point-to-point", "no direct paths: " + owner.node_peers.why_no_link());
    }
    const transfer::PinnedPool::Statistics statistics = owner.pool.statistics();
    if (statistics.overflow_blocks > 0) {
        owner.ledger.add_fallback("staging", "at most " + std::to_string(statistics.overflow_peak_bytes >> 20) +
                                                 " MiB of ordinary host memory at one time, in " +
                                                 std::to_string(statistics.overflow_blocks) + " blocks");
    }
    for (int mover = 0; mover < report::kMoverCount; ++mover) {
        const report::Totals::Sum& sum = report::totals.copies[static_cast<std::size_t>(mover)];
        owner.ledger.add_copies(static_cast<report::Mover>(mover), {sum.calls, sum.bytes});
    }
    report::Ledger all;
    all.merge(owner.ledger.serialise());
    if (world_model && size > 1) {
        // Only rank 0 reports, for all ranks. The gathering is nonblocking with a time limit, since some ranks of the
        // job may run without the layer or a report.
        struct Gathering {
            std::string text;
            int length;
            std::vector<int> lengths, offsets;
            std::vector<char> texts;
        };
        auto gathering = std::make_unique<Gathering>();
        auto& [text, length, lengths, offsets, texts] = *gathering;
        text = owner.ledger.serialise();
        length = static_cast<int>(text.size());
        lengths.resize(static_cast<std::size_t>(rank == 0 ? size : 1));
        offsets.resize(lengths.size());
        timespec start{};
        clock_gettime(CLOCK_MONOTONIC, &start);
        const auto wait = [&](MPI_Request& request) {
            int done = 0;
            while (done == 0) {
                timespec now{};
                clock_gettime(CLOCK_MONOTONIC, &now);
                if (native.Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
                    now.tv_sec - start.tv_sec > kGatherSeconds) {
                    return false;
                }
                if (done == 0) {
                    sched_yield();
                }
            }
            return true;
        };
        MPI_Request request = MPI_REQUEST_NULL;
        native.Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
        bool complete = wait(request);
        if (complete) {
            if (rank == 0) {
                int total = 0;
                for (std::size_t i = 0; i < lengths.size(); ++i) {
                    offsets[i] = total;
                    total += lengths[i];
                }
                texts.resize(static_cast<std::size_t>(total));
            }
            native.Igatherv(text.data(), length, MPI_CHAR, texts.data(), lengths.data(), offsets.data(), MPI_CHAR, 0,
                            MPI_COMM_WORLD, &request);
            complete = wait(request);
        }
        if (complete) {
            if (rank != 0) {
                return;
            }
            for (std::size_t i = 1; i < lengths.size(); ++i) {
                all.merge(std::string(texts.data() + offsets[i], static_cast<std::size_t>(lengths[i])));
            }
            mine.rank = -1;  // stands for the whole job
        } else {
            // The MPI may write there as long as it runs: nothing can cancel such an operation.
            [[maybe_unused]] auto* const kept = gathering.release();
            mine.host += " (other ranks sent no report within " + std::to_string(kGatherSeconds) + " s)";
        }
    }
    const std::string& file = owner.settings.report_file;
    const bool json = file.size() > 5 && file.compare(file.size() - 5, 5, ".json") == 0;
    const std::string text = json ? report::to_json(mine, all) : report::to_text(mine, all);
    if (file.empty()) {
        fputs(text.c_str(), stderr);
        return;
    }
    std::string path = file;
    MPI_Comm parent = MPI_COMM_NULL;
    if (world_model) {
        native.Comm_get_parent(&parent);
    }
    if (parent != MPI_COMM_NULL || !world_model || (mine.rank > 0)) {
        // Several processes report for themselves (spawned jobs, ranks without a world), so their files need different
        // names.
        path.insert(json ? path.size() - 5 : path.size(), "-" + std::to_string(getpid()));
    }
    if (const std::string why = write_text(path, text); !why.empty()) {
        fprintf(
            stderr,
            "awaken: the report cannot be written to %s (%s), and follows here: give AWAKEN_REPORT a file in a folder "
            "that has room and can be written to\n%s",
            path.c_str(), why.c_str(), text.c_str());
    }
}

}  // namespace awaken::AWAKEN_ABI
