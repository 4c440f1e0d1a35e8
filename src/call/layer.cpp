#include "call/layer.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/doctor_notes.h"
#include "base/error.h"
#include "p2p/network.h"
#include "report/totals.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// How long a rank waits at the end for the others' figures before it reports its own only. Ranks without a report
/// (another environment, no layer) never answer.
constexpr int kGatherSeconds = 30;

std::string host_name() {
    char name[256] = {};
    return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace

Layer::Layer(const loader::Binding& mpi, Settings given)
    : binding(mpi),
      settings(std::move(given)),
      tracing(!settings.trace_folder.empty()),
      observed(settings.report || tracing),
      default_handlers(real, binding),
      datatypes(real),
      pool(settings.pinned_pool_bytes),
      requests(real),
      neighbours(*this),
      trace(*this) {
    real.load(binding);
    completion.load(binding);
    fault_tolerance.load(binding);
    below.load_below(binding);
}

gpu::Runtime& Layer::look_for_gpu() {
    gpu::Runtime& runtime = gpu::find_in_use(settings.gpu);
    if (runtime.vendor() != gpu::Vendor::none) {
        if (settings.default_stream == DefaultStream::trust) {
            runtime.trust_default_stream();
        }
        _gpu.store(&runtime, std::memory_order_release);
        neighbours.use(runtime);
    }
    return runtime;
}

transfer::Copier& Layer::copier() {
    std::call_once(_copier_once, [this] { _copier = std::make_unique<transfer::Copier>(gpu(), &packer()); });
    return *_copier;
}

transfer::Packer& Layer::packer() {
    std::call_once(_packer_once, [this] {
        gpu::Runtime& runtime = gpu();
        _packer = std::make_unique<transfer::Packer>(
            runtime, tuning(runtime), [this](const std::string& reason) { ledger.add_fallback("datatypes", reason); });
    });
    return *_packer;
}

// Three may know whether the MPI takes device memory, and in this order they are believed: the user, a real attempt
// that `awaken doctor` has made with this library under these settings, and the MPI itself. An MPI's word comes last
// because it tells how it was built rather than what works here.

const Layer::NativeGpuSupport& Layer::native_gpu_support() {
    std::call_once(_native_gpu_once, [this] { _native_gpu = find_native_gpu_support(); });
    return _native_gpu;
}

Layer::NativeGpuSupport Layer::find_native_gpu_support() {
    if (settings.path == NodePath::staged) {
        return {false, "not used: AWAKEN_PATH=staged was chosen"};
    }
    if (settings.native_gpu != NativeGpu::automatic) {
        const bool works = settings.native_gpu == NativeGpu::yes;
        return {works, works ? "yes: AWAKEN_NATIVE_GPU=yes" : "no: AWAKEN_NATIVE_GPU=no"};
    }
    const gpu::Vendor vendor = gpu().vendor();
    const char* const emulated = std::getenv("AWAKEN_EMULATE");
    const std::string kind =
        std::string(to_string(vendor)) + (emulated != nullptr && *emulated != '\0' ? "-emulated" : "");
    const DoctorNote note =
        find_doctor_note(doctor_notes_file(environ), library_key(binding.symbol("PMPI_Send"), binding.path), kind,
                         gpu_switches_of_mpis(environ));
    if (note.answer != DoctorNote::Answer::none) {
        const bool works = note.answer == DoctorNote::Answer::yes;
        return {works, (works ? "yes" : "no") + std::string(": `awaken doctor` tried it (") + note.text + ")"};
    }
    if (!note.text.empty()) {
        ledger.add_fallback("device memory", note.text);
    }

    // All that it has must agree: MPICH's first one knows what was switched off when the job started.
    int said = 0, agreed = 0;
    std::string names;
    const auto hear = [&](const char* const name, const bool yes) {
        ++said;
        agreed += yes ? 1 : 0;
        names += (names.empty() ? "" : ", ") + std::string(name);
    };
    using QueryKind = int (*)(int, int*);
    constexpr const char* kByKind = "MPIX_GPU_query_support";
    constexpr int kCuda = 0, kHip = 2;  // MPICH's numbers
    if (const auto query = reinterpret_cast<QueryKind>(binding.symbol(kByKind)); query != nullptr) {
        int supported = 0;
        hear(kByKind, query(vendor == gpu::Vendor::hip ? kHip : kCuda, &supported) == MPI_SUCCESS && supported != 0);
    }
    using Query = int (*)();
    for (const auto& [name, of] : {std::pair{"MPIX_Query_cuda_support", gpu::Vendor::cuda},
                                   std::pair{"MPIX_Query_rocm_support", gpu::Vendor::hip},
                                   std::pair{"MPIX_Query_hip_support", gpu::Vendor::hip}}) {
        const auto query = of == vendor ? reinterpret_cast<Query>(binding.symbol(name)) : nullptr;
        if (query != nullptr) {
            hear(name, query() != 0);
        }
    }
    if (said == 0) {
        return {false, "not known: the MPI does not tell, and `awaken doctor` has not tried it"};
    }
    const bool works = agreed == said;
    return {works, (works ? "yes" : "no") + std::string(": the MPI says so (") + names + ")"};
}

int Layer::error_code(int error_class, const Error& error) {
    if (error_class == MPI_ERR_OTHER) {
        error_class = fault_tolerance.class_of(error);
    }
    const std::scoped_lock lock(_mutex);
    const auto known = _error_codes.find(error.what());
    if (known != _error_codes.end()) {
        return known->second;
    }
    fprintf(stderr, "awaken: %s\n", error.what());
    int code = error_class;
    if (_open_models > 0) {
        // Adding to a predefined class is allowed by MPI-4.1, 9.5; an MPI that refuses leaves us with the class alone.
        int added = 0;
        if (real.Add_error_code(error_class, &added) == MPI_SUCCESS) {
            const std::string text = std::string("awaken: ") + error.what();
            real.Add_error_string(added, text.substr(0, MPI_MAX_ERROR_STRING - 1).c_str());
            code = added;
        }
    }
    _error_codes.emplace(error.what(), code);
    return code;
}

bool Layer::owes_chunks() const noexcept {
    const Network* const network = neighbours.network();
    return network != nullptr && network->owes_chunks();
}

bool Layer::moves_chunks() noexcept {
    Network* const network = neighbours.network();
    return network != nullptr && network->moves_chunks();
}

void Layer::mpi_started(const bool world_model) {
    // A session's thread level is its own, and nobody else's to ask for.
    int level = MPI_THREAD_MULTIPLE;
    if (world_model) {
        real.Query_thread(&level);
    }
    if (level == MPI_THREAD_MULTIPLE) {
        _several_threads.store(true, std::memory_order_relaxed);
    }
    const std::scoped_lock lock(_mutex);
    ++_open_models;
    if (world_model) {
        _world_up = true;
        real.Comm_rank(MPI_COMM_WORLD, &_rank);
        real.Comm_size(MPI_COMM_WORLD, &_size);
        fault_tolerance.mpi_started(real);
        neighbours.after_init();
        if (gpu::Runtime* const known = _gpu.load(std::memory_order_acquire)) {
            neighbours.use(*known);
        }
        if (tracing) {
            trace.begin();
        }
    }
}

report::Identity Layer::identity() const {
    report::Identity identity;
    identity.rank = _rank;
    identity.size = _size;
    identity.host = host_name();
    identity.mpi_library = binding.path;
    identity.mpi_was_chosen = binding.was_chosen;
    identity.mpi_version = binding.version;
    identity.abi = loader::to_string(binding.abi);
    if (!binding.passed_over.empty()) {
        identity.notes.push_back("AWAKEN_MPI=" + binding.passed_over +
                                 " had no part: the program brought its own MPI, which is the one in use");
    }
    if (settings.path == NodePath::ring && !settings.collectives.empty()) {
        identity.notes.emplace_back(
            "AWAKEN_COLLECTIVES had no part: AWAKEN_PATH=ring stages the collectives on device memory");
    }
    gpu::Runtime* const runtime = _gpu.load(std::memory_order_acquire);
    if (runtime == nullptr) {
        identity.gpu =
            settings.gpu == gpu::Choice::none ? "none (AWAKEN_GPU=none)" : "none: the program loaded no GPU runtime";
        return identity;
    }
    identity.gpu = runtime->versions().description;
    if (settings.default_stream == DefaultStream::trust) {
        identity.gpu += "; kernels in the default stream are not waited for (AWAKEN_DEFAULT_STREAM=trust)";
    }
    for (int device = 0; device < runtime->device_count(); ++device) {
        gpu::DeviceInfo info;
        if (runtime->device_info(device, info).ok()) {
            identity.devices.push_back(info.name + " (" + info.architecture + ", " + info.pci_bus_id + ")");
        }
    }
    identity.native_gpu = _native_gpu.who_says;
    const std::string between = neighbours.between_nodes();
    if (neighbours.any_teams() || !between.empty()) {
        std::string rest = neighbours.selection().text();
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

void Layer::write_report(const bool world_model) {
    report::given.store(true, std::memory_order_relaxed);
    report::Identity mine = identity();
    if (_gpu.load(std::memory_order_acquire) != nullptr && _size > 1 && neighbours.link() == nullptr) {
        ledger.add_fallback("point-to-point", "no direct paths: " + neighbours.why_no_link());
    }
    const transfer::PinnedPool::Statistics statistics = pool.statistics();
    if (statistics.overflow_blocks > 0) {
        ledger.add_fallback("staging", "at most " + std::to_string(statistics.overflow_peak_bytes >> 20) +
                                           " MiB of ordinary host memory at one time, in " +
                                           std::to_string(statistics.overflow_blocks) + " blocks");
    }
    report::Ledger all;
    all.merge(ledger.serialise());
    if (world_model && _size > 1) {
        // Only rank 0 reports, for all. The gathering is nonblocking with a time limit, since nothing obliges every
        // rank of a job to run with the layer and a report.
        struct Gathering {
            std::string text;
            int length;
            std::vector<int> lengths, offsets;
            std::vector<char> texts;
        };
        auto gathering = std::make_unique<Gathering>();
        auto& [text, length, lengths, offsets, texts] = *gathering;
        text = ledger.serialise();
        length = static_cast<int>(text.size());
        lengths.resize(static_cast<std::size_t>(_rank == 0 ? _size : 1));
        offsets.resize(lengths.size());
        timespec start{};
        clock_gettime(CLOCK_MONOTONIC, &start);
        const auto wait = [&](MPI_Request& request) {
            int done = 0;
            while (done == 0) {
                timespec now{};
                clock_gettime(CLOCK_MONOTONIC, &now);
                if (real.Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
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
        real.Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
        bool complete = wait(request);
        if (complete) {
            if (_rank == 0) {
                int total = 0;
                for (std::size_t i = 0; i < lengths.size(); ++i) {
                    offsets[i] = total;
                    total += lengths[i];
                }
                texts.resize(static_cast<std::size_t>(total));
            }
            real.Igatherv(text.data(), length, MPI_CHAR, texts.data(), lengths.data(), offsets.data(), MPI_CHAR, 0,
                          MPI_COMM_WORLD, &request);
            complete = wait(request);
        }
        if (complete) {
            if (_rank != 0) {
                return;
            }
            for (std::size_t i = 1; i < lengths.size(); ++i) {
                all.merge(std::string(texts.data() + offsets[i], static_cast<std::size_t>(lengths[i])));
            }
            mine.rank = -1;  // stands for the whole job
        } else {
            // The MPI may write there as long as it runs: nobody can take such an operation back.
            static_cast<void>(gathering.release());
            mine.host += " (other ranks sent no report within " + std::to_string(kGatherSeconds) + " s)";
        }
    }
    const std::string& file = settings.report_file;
    const bool json = file.size() > 5 && file.compare(file.size() - 5, 5, ".json") == 0;
    const std::string text = json ? report::to_json(mine, all) : report::to_text(mine, all);
    if (file.empty()) {
        fputs(text.c_str(), stderr);
        return;
    }
    std::string path = file;
    MPI_Comm parent = MPI_COMM_NULL;
    if (world_model) {
        real.Comm_get_parent(&parent);
    }
    if (parent != MPI_COMM_NULL || !world_model || (mine.rank > 0)) {
        // Several processes report for themselves (spawned jobs, ranks without a world) and must not share a name.
        path.insert(json ? path.size() - 5 : path.size(), "-" + std::to_string(getpid()));
    }
    FILE* const stream = fopen(path.c_str(), "w");
    if (stream == nullptr) {
        fprintf(stderr,
                "awaken: the report cannot be written to %s: give AWAKEN_REPORT a file in a writable directory\n",
                path.c_str());
        fputs(text.c_str(), stderr);
        return;
    }
    fputs(text.c_str(), stream);
    fclose(stream);
}

void Layer::mpi_stopping(const bool world_model) {
    static_cast<void>(gpu().was_reset());  // then nothing of ours is touched from here on
    requests.finish_adopted();
    bool last = false;
    {
        const std::scoped_lock lock(_mutex);
        last = --_open_models == 0;
        if (world_model) {
            _world_up = false;
        }
    }
    // The world's report covers everything; sessions report when there was no world.
    if (settings.report && (world_model || (last && _rank < 0))) {
        write_report(world_model);
    }
    if (world_model) {
        neighbours.before_finalize();
    }
    if (tracing && (world_model || (last && _rank < 0))) {
        trace.end();
    }
    if (last) {
        datatypes.clear();
    }
}

void Layer::mpi_stopped() {
    {
        const std::scoped_lock lock(_mutex);
        if (!_world_up) {
            neighbours.after_finalize();
        }
        if (_open_models > 0) {
            return;
        }
    }
    if (_copier != nullptr) {
        _copier->shut_down();
    }
    if (_packer != nullptr) {
        _packer->shut_down();
    }
    pool.trim();
    landings.trim();
    gpu().do_deferred(gpu::kPatience);
}

transfer::Tuning Layer::tuning(gpu::Runtime& runtime) const {
    gpu::DeviceInfo info;
    const bool known = runtime.device_count() > 0 && runtime.device_info(0, info).ok();
    return transfer::Tuning::find(known ? info.name : std::string(), {}, settings.tuning_file, environ);
}

}  // namespace awaken::AWAKEN_ABI
