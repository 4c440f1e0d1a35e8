// SPDX-License-Identifier: Apache-2.0
// The program behind `awaken topo`: tells what it finds of this machine's GPUs as one JSON object on stdout. It knows
// no MPI; docs/topology.md describes the object.

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/settings.h"
#include "gpu/gpu.h"
#include "topology/host.h"
#include "topology/ipc.h"
#include "topology/links.h"
#include "topology/measure.h"
#include "transfer/device_copies.h"

namespace awaken::topology {
namespace {

constexpr int kUsageError = 2;
constexpr int kNoGpu = 3;

struct Arguments {
    Effort effort;
    bool measure = true;
    bool progress = false;     ///< a line on stderr for each pair
    std::vector<int> devices;  ///< empty: all visible ones
    std::string system_files = "/sys";
};

template <typename Number>
Number number(const std::string& option, const std::string_view text, const Number least) {
    Number value{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc{} || end != text.data() + text.size() || value < least) {
        throw Error(option + " " + std::string(text) + " is not a number from " + std::to_string(least) + " on",
                    "write a whole number");
    }
    return value;
}

Arguments parse(const std::span<char* const> words) {
    Arguments arguments;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string option = words[i];
        if (option == "--no-measure") {
            arguments.measure = false;
            continue;
        }
        if (option == "--progress") {
            arguments.progress = true;
            continue;
        }
        if (option == "--no-verify") {
            arguments.effort.verify = false;
            continue;
        }
        if (i + 1 == words.size()) {
            throw Error(option + " is given without its value", "see `awaken topo --help`");
        }
        const std::string value = words[++i];
        if (option == "--bytes") {
            arguments.effort.bytes = parse_bytes(value, option);
            if (arguments.effort.bytes < 1) {
                throw Error("--bytes 0 measures nothing", "use a size such as 64M");
            }
        } else if (option == "--samples") {
            arguments.effort.samples = number(option, value, 1);
        } else if (option == "--copies") {
            arguments.effort.copies_per_sample = number(option, value, 1);
        } else if (option == "--latency-samples") {
            arguments.effort.latency_samples = number(option, value, 1);
        } else if (option == "--sysfs") {
            arguments.system_files = value;
        } else if (option == "--devices") {
            std::size_t begin = 0;
            while (begin <= value.size()) {
                const std::size_t end = std::min(value.find(',', begin), value.size());
                arguments.devices.push_back(number(option, std::string_view(value).substr(begin, end - begin), 0));
                begin = end + 1;
            }
        } else {
            throw Error("there is no option " + option, "see `awaken topo --help`");
        }
    }
    return arguments;
}

gpu::Runtime& find_runtime(std::string& why_not) {
    const bool hip_first = gpu::expected_vendor() == gpu::Vendor::hip;
    for (const bool hip : {hip_first, !hip_first}) {
        std::string reason;
        gpu::Runtime& runtime = gpu::find(hip ? gpu::Choice::hip : gpu::Choice::cuda, &reason);
        if (runtime.is_present() && runtime.device_count() > 0) {
            return runtime;
        }
        if (runtime.is_present()) {
            reason = runtime.versions().runtime + " shows no GPU";
        }
        why_not += (why_not.empty() ? "" : "; ") + reason;
    }
    return gpu::none();
}

/// Numbers that are not known are null, never 0 or -1.
Json known(const int value) {
    return value >= 0 ? Json(value) : Json();
}
Json positive(const double value) {
    return value > 0 ? Json(value) : Json();
}
Json text_or_null(const std::string& text) {
    return text.empty() ? Json() : Json(text);
}

struct Gpu {
    int device;
    gpu::DeviceInfo info;
};

std::vector<Gpu> describe_devices(gpu::Runtime& runtime, const Arguments& arguments) {
    std::vector<Gpu> gpus;
    std::vector<int> devices = arguments.devices;
    if (devices.empty()) {
        for (int device = 0; device < runtime.device_count(); ++device) {
            devices.push_back(device);
        }
    }
    for (const int device : devices) {
        if (device >= runtime.device_count()) {
            throw Error("there is no GPU " + std::to_string(device) + ": " + std::to_string(runtime.device_count()) +
                            " are visible",
                        "use numbers from 0 to " + std::to_string(runtime.device_count() - 1));
        }
        Gpu gpu{device, {}};
        if (const gpu::Status status = runtime.device_info(device, gpu.info); !status.ok()) {
            throw Error("GPU " + std::to_string(device) + " does not describe itself: " + status.message(),
                        "see that the driver works");
        }
        gpus.push_back(std::move(gpu));
    }
    return gpus;
}

Json tell_gpus(const std::vector<Gpu>& gpus, const Host& host, LinkSource* const links) {
    Json all = Json::array();
    for (const Gpu& gpu : gpus) {
        const std::string& address = gpu.info.pci_bus_id;
        int node = host.numa_node(address);
        if (node < 0 && links != nullptr) {
            node = links->numa_node(address);
        }
        const PcieLink pcie = host.pcie_link(address);
        all.push_back({{"gpu", gpu.device},
                       {"name", gpu.info.name},
                       {"pci_address", address},
                       {"uuid", hexadecimal(gpu.info.uuid)},
                       {"architecture", gpu.info.architecture},
                       {"memory_bytes", gpu.info.memory_bytes},
                       {"numa_node", known(node)},
                       {"numa_processors", node >= 0 ? text_or_null(host.processors(node)) : Json()},
                       {"active_links", known(links != nullptr ? links->active_links(address) : kUnknown)},
                       {"pcie_GTps", positive(pcie.gigatransfers_per_s)},
                       {"pcie_lanes", pcie.lanes > 0 ? Json(pcie.lanes) : Json()}});
    }
    return all;
}

Json tell_links(gpu::Runtime& runtime, const std::vector<Gpu>& gpus, const Host& host, LinkSource* const links,
                const std::vector<IpcResult>& ipc) {
    Json all = Json::array();
    for (const Gpu& one : gpus) {
        for (const Gpu& other : gpus) {
            if (one.device == other.device) {
                continue;
            }
            Link link;
            if (links != nullptr) {
                link = links->between(one.info.pci_bus_id, other.info.pci_bus_id);
            }
            if (link.pci_path.empty()) {
                link.pci_path = host.pci_path(one.info.pci_bus_id, other.info.pci_bus_id);
            }
            bool can = false;
            const gpu::Status asked = runtime.can_access_peer(one.device, other.device, can);
            const gpu::Status enabled =
                asked.ok() && can ? runtime.enable_peer_access(one.device, other.device) : asked;
            const auto tried = std::find_if(ipc.begin(), ipc.end(), [&](const IpcResult& result) {
                return result.owner == other.device && result.device == one.device;
            });
            all.push_back({{"gpu", one.device},
                           {"peer", other.device},
                           {"type", text_or_null(link.type)},
                           {"links", known(link.count)},
                           {"hops", known(link.hops)},
                           {"pci_path", text_or_null(link.pci_path)},
                           {"why_not_known", text_or_null(link.why_not)},
                           {"peer_access_possible", asked.ok() && can},
                           {"peer_access_works", asked.ok() && can && enabled.ok()},
                           {"peer_access_why_not", text_or_null(enabled.message())},
                           {"ipc_works", tried != ipc.end() && tried->works},
                           {"ipc_why_not", tried != ipc.end() ? text_or_null(tried->why_not) : Json("not tried")}});
        }
    }
    return all;
}

Json tell_cards(const std::vector<Gpu>& gpus, const Host& host) {
    Json all = Json::array();
    for (const NetworkCard& card : host.network_cards()) {
        Json paths = Json::array();
        for (const Gpu& gpu : gpus) {
            paths.push_back({{"gpu", gpu.device},
                             {"pci_path", card.pci_address.empty()
                                              ? Json()
                                              : text_or_null(host.pci_path(gpu.info.pci_bus_id, card.pci_address))}});
        }
        all.push_back({{"name", card.name},
                       {"kind", card.kind},
                       {"pci_address", text_or_null(card.pci_address)},
                       {"numa_node", known(card.numa_node)},
                       {"rate", text_or_null(card.rate)},
                       {"rate_Gbps", positive(card.gigabits_per_s)},
                       {"gpus", paths}});
    }
    return all;
}

Json tell_bandwidth(const Bandwidth& bandwidth) {
    if (bandwidth.samples == 0) {
        return {};
    }
    return {{"median_GBps", bandwidth.median_GBps},
            {"least_GBps", bandwidth.least_GBps},
            {"most_GBps", bandwidth.most_GBps},
            {"samples", bandwidth.samples}};
}

const char* name_of(const Method method) {
    return method == Method::engine ? "copy engine" : "kernel";
}

Json tell_together(const std::vector<TogetherResult>& results) {
    Json all = Json::array();
    for (const TogetherResult& result : results) {
        all.push_back({{"from", result.from == kAll ? Json("all") : Json(result.from)},
                       {"method", name_of(result.method)},
                       {"copies", result.copies},
                       {"together", tell_bandwidth(result.together)},
                       {"verified", result.verified},
                       {"skipped", text_or_null(result.skipped)},
                       {"failed", text_or_null(result.failed)}});
    }
    return all;
}

/// What carries out the runtime's copies. AMD's runtime takes kernels of its own where its environment says so.
Json tell_copy_engine(const gpu::Vendor vendor) {
    constexpr const char* kKernels = "kernels of the runtime";
    if (vendor != gpu::Vendor::hip) {
        return {{"between_gpus", "copy engines"}, {"with_host", "copy engines"}, {"settings", Json::array()}};
    }
    Json settings = Json::array();
    const auto is_off = [&](const std::string& name) {
        const char* const value = std::getenv(name.c_str());
        const bool off = value != nullptr && std::string_view(value) == "0";
        if (off) {
            settings.push_back(name + "=0");
        }
        return off;
    };
    const bool off = is_off("HSA_ENABLE_SDMA");
    const bool peer_off = is_off("HSA_ENABLE_PEER_SDMA");
    return {{"between_gpus", off || peer_off ? kKernels : "SDMA engines"},
            {"with_host", off ? kKernels : "SDMA engines"},
            {"settings", settings}};
}

Json tell_pairs(const std::vector<PairResult>& results) {
    Json all = Json::array();
    for (const PairResult& result : results) {
        all.push_back({{"gpu", result.device},
                       {"peer", result.peer == kHost ? Json("host") : Json(result.peer)},
                       {"method", name_of(result.method)},
                       {"read", tell_bandwidth(result.read)},
                       {"write", tell_bandwidth(result.write)},
                       {"both", tell_bandwidth(result.both)},
                       {"latency_us", positive(result.latency_us)},
                       {"verified", result.verified},
                       {"skipped", text_or_null(result.skipped)},
                       {"failed", text_or_null(result.failed)}});
    }
    return all;
}

int run(const std::span<char* const> words) {
    // Before the runtime starts: what is measured as copy engine is to be one, where the vendor has a switch for it.
    transfer::request_copy_engine(CopyEngine::engine);
    std::string why_no_gpu;
    if (!words.empty() && std::string_view(words.front()) == kIpcChildWord) {
        return serve_ipc_requests(find_runtime(why_no_gpu));
    }
    const Arguments arguments = parse(words);
    gpu::Runtime& runtime = find_runtime(why_no_gpu);
    if (!runtime.is_present()) {
        std::fprintf(stderr,
                     "awaken: there is no GPU to look at (%s): run this on a machine with one, or try it with "
                     "--emulate cuda:2\n",
                     why_no_gpu.c_str());
        return kNoGpu;
    }
    const Host host(arguments.system_files);
    std::string why_no_links;
    const std::unique_ptr<LinkSource> links = open_link_source(runtime.vendor(), why_no_links);
    const std::vector<Gpu> gpus = describe_devices(runtime, arguments);
    std::vector<int> devices;
    for (const Gpu& gpu : gpus) {
        devices.push_back(gpu.device);
    }

    const std::vector<IpcResult> ipc = try_ipc(runtime, devices);
    Json ipc_on_one = Json::array();
    for (const IpcResult& result : ipc) {
        if (result.owner == result.device) {
            ipc_on_one.push_back(
                {{"gpu", result.owner}, {"works", result.works}, {"why_not", text_or_null(result.why_not)}});
        }
    }
    Json report = {{"vendor", gpu::to_string(runtime.vendor())},
                   {"runtime", runtime.versions().runtime},
                   {"runtime_library", runtime.versions().library},
                   {"link_source", links != nullptr ? Json(links->name()) : Json()},
                   {"link_source_why_not", text_or_null(links != nullptr ? "" : why_no_links)},
                   {"pci_source", Host::source()},
                   {"gpus", tell_gpus(gpus, host, links.get())},
                   {"links", tell_links(runtime, gpus, host, links.get(), ipc)},
                   {"ipc_within_gpu", ipc_on_one},
                   {"network_cards", tell_cards(gpus, host)},
                   {"numa_distances", host.numa_distances()}};
    if (arguments.measure) {
        const RawResults found =
            measure_all(runtime, devices, arguments.effort, [&](std::size_t done, std::size_t all) {
                // For whoever started this: to be shown, and as a sign of life.
                if (arguments.progress) {
                    std::fprintf(stderr, "pairs: %zu of %zu\n", done, all);
                }
            });
        report["raw"] = {{"bytes", arguments.effort.bytes},
                         {"samples", arguments.effort.samples},
                         {"copies_per_sample", arguments.effort.copies_per_sample},
                         {"data_checked", arguments.effort.verify},
                         {"copy_engine", tell_copy_engine(runtime.vendor())},
                         {"pairs", tell_pairs(found.pairs)},
                         {"together", tell_together(found.together)}};
    }
    std::puts(report.text().c_str());
    return 0;
}

}  // namespace
}  // namespace awaken::topology

int main(const int count, char** const arguments) {
    try {
        return awaken::topology::run({arguments + 1, static_cast<std::size_t>(count > 0 ? count - 1 : 0)});
    } catch (const std::exception& error) {
        std::fprintf(stderr, "awaken: %s\n", awaken::printable(error.what()).c_str());
        return awaken::topology::kUsageError;
    }
}
