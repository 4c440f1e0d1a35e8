// SPDX-License-Identifier: Apache-2.0
#include "core/configuration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace awaken::emulator {
namespace {

constexpr int kMaximumDevices = 16;

std::string_view variable(const char* name) noexcept {
    const char* value = std::getenv(name);
    return value ? std::string_view(value) : std::string_view();
}

std::vector<std::string_view> split(std::string_view text, char separator = ',') {
    std::vector<std::string_view> parts;
    while (true) {
        const std::size_t comma = text.find(separator);
        std::string_view part = text.substr(0, comma);
        while (!part.empty() && part.front() == ' ') {
            part.remove_prefix(1);
        }
        while (!part.empty() && part.back() == ' ') {
            part.remove_suffix(1);
        }
        parts.push_back(part);
        if (comma == std::string_view::npos) {
            return parts;
        }
        text.remove_prefix(comma + 1);
    }
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) noexcept {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
        return std::nullopt;
    }
    return number;
}

/// Up to a minute.
std::optional<std::chrono::microseconds> parse_microseconds(std::string_view text) noexcept {
    const auto number = parse_number<std::uint32_t>(text);
    return number && *number <= 60'000'000 ? std::optional(std::chrono::microseconds(*number)) : std::nullopt;
}

/// Restricts `devices` to those that the variable lists, as the drivers do: up to the first entry that is no valid
/// device.
void restrict_to(std::vector<int>& devices, const char* name) {
    const char* value = std::getenv(name);
    if (!value) {
        return;
    }
    std::vector<int> chosen;
    for (const std::string_view part : split(value)) {
        const auto index = parse_number<int>(part);
        if (!index || *index < 0 || static_cast<std::size_t>(*index) >= devices.size()) {
            break;
        }
        chosen.push_back(devices[static_cast<std::size_t>(*index)]);
    }
    devices = std::move(chosen);
}

std::string complain(const char* name, std::string_view value, const std::string& expected) {
    return std::string(name) + "=" + std::string(value) + " is not understood; use " + expected;
}

void read_selection(Configuration& configuration) {
    constexpr const char* kExpected = "cuda:N, hip:N, hip5:N, hip6:N or hip7:N with N from 1 to 16";
    const std::string_view text = variable("AWAKEN_EMULATE");
    if (text.empty()) {
        return;
    }
    const std::size_t colon = text.find(':');
    const std::string_view vendor = text.substr(0, colon);
    int devices = 2;
    if (colon != std::string_view::npos) {
        devices = parse_number<int>(text.substr(colon + 1)).value_or(0);
    }
    if (vendor == "cuda") {
        configuration.vendor = Vendor::cuda;
    } else if (vendor == "hip" || vendor == "hip5" || vendor == "hip6" || vendor == "hip7") {
        configuration.vendor = Vendor::hip;
        configuration.hip_generation = vendor.size() == 4 ? vendor[3] - '0' : 0;
    }
    if (configuration.vendor == Vendor::none || devices < 1 || devices > kMaximumDevices) {
        configuration.problem = complain("AWAKEN_EMULATE", text, kExpected);
        return;
    }
    configuration.devices = devices;
}

/// Faults that take no value.
constexpr std::array<std::pair<std::string_view, bool Faults::*>, 14> kFlags{{
    {"ipc-export", &Faults::ipc_export},
    {"ipc-open", &Faults::ipc_open},
    {"descriptor-import", &Faults::descriptor_import},
    {"isolated", &Faults::isolated},
    {"hidden-device", &Faults::hidden_device},
    {"no-peer", &Faults::no_peer},
    {"pinned-oom", &Faults::pinned_memory},
    {"register", &Faults::registering},
    {"registered-elsewhere", &Faults::registered_elsewhere},
    {"shutdown", &Faults::shutdown},
    {"ccl-share-gpu", &Faults::ccl_shared_device},
    {"host-access", &Faults::host_access},
    {"pageable-memory", &Faults::pageable_memory},
    {"memory-operations-v1", &Faults::first_memory_operations},
}};

void read_faults(Configuration& configuration) {
    constexpr const char* kExpected =
        "a comma-separated list of ipc-export, ipc-open, descriptor-import, isolated, hidden-device, no-peer, oom, "
        "oom-after=BYTES, pinned-oom, register, registered-elsewhere, shutdown, copy-error=N, kernel-error=N, "
        "ccl-init=RANK, ccl-silent=RANK, ccl-connect=RANK, ccl-share-gpu, pageable-memory, memory-operations-v1 and "
        "host-access";
    const std::string_view text = variable("AWAKEN_TEST_FAULTS");
    if (text.empty()) {
        return;
    }
    Faults& faults = configuration.faults;
    for (const std::string_view part : split(text)) {
        const std::size_t equals = part.find('=');
        const std::string_view name = part.substr(0, equals);
        const std::string_view value = equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
        const bool plain = equals == std::string_view::npos;
        const auto* const flag =
            std::find_if(kFlags.begin(), kFlags.end(), [&](const auto& entry) { return plain && entry.first == name; });
        if (flag != kFlags.end()) {
            faults.*flag->second = true;
        } else if (plain && name == "oom") {
            faults.memory_limit = 0;
        } else if (name == "oom-after" && parse_bytes(value)) {
            faults.memory_limit = parse_bytes(value);
        } else if (name == "copy-error" && parse_number<std::uint64_t>(value).value_or(0) > 0) {
            faults.failing_copy = *parse_number<std::uint64_t>(value);
        } else if (name == "kernel-error" && parse_number<std::uint64_t>(value).value_or(0) > 0) {
            faults.failing_kernel = *parse_number<std::uint64_t>(value);
        } else if (name == "ccl-init" && parse_number<int>(value).value_or(-1) >= 0) {
            faults.failing_ccl_rank = *parse_number<int>(value);
        } else if (name == "ccl-silent" && parse_number<int>(value).value_or(-1) >= 0) {
            faults.silent_ccl_rank = *parse_number<int>(value);
        } else if (name == "ccl-connect" && parse_number<int>(value).value_or(-1) >= 0) {
            faults.unconnected_ccl_rank = *parse_number<int>(value);
        } else {
            configuration.problem = complain("AWAKEN_TEST_FAULTS", text, kExpected);
            return;
        }
    }
}

constexpr int kMostLinks = 64;

/// Rows of numbers of links: "0,4,2/4,0,0/2,0,0". Says what is wrong and what to write; nothing when all is well.
std::string read_matrix(std::string_view text, int devices, std::vector<std::vector<int>>& matrix) {
    const std::string each = "one for each of the " + std::to_string(devices) + " devices";
    const auto expected = static_cast<std::size_t>(devices);
    for (const std::string_view row : split(text, '/')) {
        const std::string here = "row " + std::to_string(matrix.size());
        std::vector<int>& counts = matrix.emplace_back();
        for (const std::string_view entry : split(row)) {
            const int count = parse_number<int>(entry).value_or(-1);
            if (count < 0 || count > kMostLinks) {
                return here + " has \"" + std::string(entry) + "\"; write a number of links from 0 (PCIe) to 64";
            }
            counts.push_back(count);
        }
        if (counts.size() != expected) {
            return here + " has " + std::to_string(counts.size()) + " numbers; write " + each;
        }
    }
    if (matrix.size() != expected) {
        return "it has " + std::to_string(matrix.size()) + " rows; write " + each;
    }
    for (std::size_t one = 0; one < expected; ++one) {
        if (matrix[one][one] != 0) {
            return "device " + std::to_string(one) + " has links with itself; write 0 there";
        }
        for (std::size_t other = 0; other < one; ++other) {
            if (matrix[one][other] != matrix[other][one]) {
                return "devices " + std::to_string(other) + " and " + std::to_string(one) + " have " +
                       std::to_string(matrix[other][one]) + " links one way and " + std::to_string(matrix[one][other]) +
                       " the other; write the same number twice";
            }
        }
    }
    return {};
}

/// A machine whose links have a name. With fewer devices, it is the first ones of it.
struct KnownMachine {
    std::string_view name;
    Vendor vendor;
    int devices;
    EmulatedLinks::Kind kind;
    int count;                ///< of each pair, or to the switch; 0 where `matrix` has them
    std::string_view matrix;  ///< as of matrix:
    int devices_of_socket;    ///< as EmulatedLinks::devices_of_socket
};

/// docs/emulator.md has them, and where they are from.
constexpr std::array kKnownMachines{
    KnownMachine{"mi250x", Vendor::hip, 8, EmulatedLinks::Kind::xgmi, 0,
                 "0,4,1,0,0,0,2,0/4,0,0,1,0,1,0,0/1,0,0,4,2,0,0,0/0,1,4,0,0,0,0,1/"
                 "0,0,2,0,0,4,1,0/0,1,0,0,4,0,0,1/2,0,0,0,1,0,0,4/0,0,0,1,0,1,4,0",
                 0},
    KnownMachine{"mi300a", Vendor::hip, 4, EmulatedLinks::Kind::xgmi, 2, "", 0},
    KnownMachine{"dgx", Vendor::cuda, 8, EmulatedLinks::Kind::nvswitch, 18, "", 0},
    KnownMachine{"summit", Vendor::cuda, 6, EmulatedLinks::Kind::nvlink, 0,
                 "0,2,2,0,0,0/2,0,2,0,0,0/2,2,0,0,0,0/0,0,0,0,2,2/0,0,0,2,0,2/0,0,0,2,2,0", 3},
};

void take_links_of(const KnownMachine& machine, Configuration& configuration) {
    if (configuration.devices > machine.devices) {
        configuration.problem = "AWAKEN_EMULATE_LINKS=" + std::string(machine.name) + ": that machine has " +
                                std::to_string(machine.devices) + " GPUs; emulate as many at most";
        return;
    }
    configuration.links = {machine.kind, machine.count, {}, machine.devices_of_socket};
    if (!machine.matrix.empty()) {
        read_matrix(machine.matrix, machine.devices, configuration.links.matrix);
        configuration.links.matrix.resize(static_cast<std::size_t>(configuration.devices));
    }
}

void read_links(Configuration& configuration) {
    using Kind = EmulatedLinks::Kind;
    const bool cuda = configuration.vendor == Vendor::cuda;
    configuration.links = cuda ? EmulatedLinks{Kind::nvswitch, 18, {}, 0} : EmulatedLinks{Kind::xgmi, 4, {}, 0};
    const std::string_view text = variable("AWAKEN_EMULATE_LINKS");
    if (text.empty()) {
        return;
    }
    const std::size_t colon = text.find(':');
    const std::string_view kind = text.substr(0, colon);
    const int count = colon == std::string_view::npos ? 0 : parse_number<int>(text.substr(colon + 1)).value_or(0);
    const bool counted = count >= 1 && count <= kMostLinks;
    const auto* const machine = std::find_if(kKnownMachines.begin(), kKnownMachines.end(), [&](const auto& known) {
        return known.name == text && known.vendor == configuration.vendor;
    });
    if (machine != kKnownMachines.end()) {
        take_links_of(*machine, configuration);
    } else if (text == "pcie") {
        configuration.links = {Kind::pcie, 0, {}, 0};
    } else if (kind == "nvlink" && cuda && counted) {
        configuration.links = {Kind::nvlink, count, {}, 0};
    } else if (kind == "nvswitch" && cuda && counted) {
        configuration.links = {Kind::nvswitch, count, {}, 0};
    } else if (kind == "xgmi" && !cuda && counted) {
        configuration.links = {Kind::xgmi, count, {}, 0};
    } else if (kind == "matrix" && colon != std::string_view::npos) {
        configuration.links = {cuda ? Kind::nvlink : Kind::xgmi, 0, {}, 0};
        const std::string wrong =
            read_matrix(text.substr(colon + 1), configuration.devices, configuration.links.matrix);
        if (!wrong.empty()) {
            configuration.links = {};
            configuration.problem = "AWAKEN_EMULATE_LINKS=" + std::string(text) + ": " + wrong;
        }
    } else {
        configuration.problem =
            complain("AWAKEN_EMULATE_LINKS", text,
                     std::string(cuda ? "dgx, summit, pcie, nvlink:N, nvswitch:N" : "mi250x, mi300a, pcie, xgmi:N") +
                         " with N from 1 to 64, or matrix:ROW/ROW/... with the numbers of links of each device");
    }
}

/// What becomes of operations in streams: how many there may be, how late they are, what holds them up.
void read_streams(Configuration& configuration) {
    if (const std::string_view text = variable("AWAKEN_EMULATE_CONNECTIONS"); !text.empty()) {
        constexpr int kMost = 32;  // as CUDA_DEVICE_MAX_CONNECTIONS
        configuration.connections = parse_number<int>(text).value_or(0);
        if (configuration.connections < 1 || configuration.connections > kMost) {
            configuration.problem = complain("AWAKEN_EMULATE_CONNECTIONS", text, "a whole number from 1 to 32");
        }
    }
    if (const std::string_view text = variable("AWAKEN_TEST_QUEUE"); !text.empty()) {
        constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
        configuration.queue_length = parse_number<std::uint64_t>(text).value_or(0);
        if (configuration.queue_length < 1 || configuration.queue_length > kMost) {
            configuration.problem = complain("AWAKEN_TEST_QUEUE", text, "a number of operations from 1 to 1048576");
        }
    }
    if (const std::string_view text = variable("AWAKEN_TEST_DELAYS"); !text.empty()) {
        const std::size_t colon = text.find(':');
        const auto seed = parse_number<std::uint32_t>(text.substr(0, colon));
        const auto longest =
            parse_microseconds(colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1));
        if (seed && longest) {
            configuration.random_delays = {*seed, *longest};
        } else {
            configuration.problem =
                complain("AWAKEN_TEST_DELAYS", text,
                         "SEED:MICROSECONDS, a whole number and the longest delay, from 0 to 60000000, such as 1:500");
        }
    }
}

}  // namespace

int EmulatedLinks::hops(const int one, const int other) const {
    if (matrix.empty()) {
        return between(one, other) == 0 ? 0 : 1;
    }
    std::vector<int> distances(matrix.size(), -1);
    std::vector<int> reached{one};
    distances.at(static_cast<std::size_t>(one)) = 0;
    for (std::size_t next = 0; next < reached.size(); ++next) {
        const int from = reached[next];
        for (int to = 0; to < static_cast<int>(matrix.size()); ++to) {
            int& distance = distances[static_cast<std::size_t>(to)];
            if (distance < 0 && between(from, to) != 0) {
                distance = distances[static_cast<std::size_t>(from)] + 1;
                reached.push_back(to);
            }
        }
    }
    return std::max(0, distances.at(static_cast<std::size_t>(other)));
}

std::optional<std::size_t> parse_bytes(std::string_view text) noexcept {
    constexpr std::string_view kUnits = "KkMmGgTt";  // 2^10, 2^20, 2^30, 2^40
    std::size_t shift = 0;
    if (const std::size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
        unit != std::string_view::npos) {
        shift = 10 * (unit / 2 + 1);
        text.remove_suffix(1);
    }
    const auto number = parse_number<std::size_t>(text);
    if (!number || *number > (std::numeric_limits<std::size_t>::max() >> shift)) {
        return std::nullopt;
    }
    return *number << shift;
}

Configuration read_configuration() {
    Configuration configuration;
    read_selection(configuration);
    if (configuration.vendor == Vendor::none) {
        return configuration;
    }
    for (int device = 0; device < configuration.devices; ++device) {
        configuration.visible.push_back(device);
    }
    if (configuration.vendor == Vendor::cuda) {
        restrict_to(configuration.visible, "CUDA_VISIBLE_DEVICES");
    } else {
        restrict_to(configuration.visible, "ROCR_VISIBLE_DEVICES");
        // HIP takes CUDA's variable as a synonym of its own.
        restrict_to(configuration.visible,
                    std::getenv("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
    }
    if (const std::string_view text = variable("AWAKEN_EMULATE_MEMORY"); !text.empty()) {
        const auto bytes = parse_bytes(text);
        constexpr std::size_t kLargest = std::size_t{1} << 40;
        if (bytes && *bytes >= (std::size_t{2} << 20) && *bytes <= kLargest) {
            configuration.memory_bytes = *bytes;
        } else {
            configuration.problem = complain("AWAKEN_EMULATE_MEMORY", text, "bytes from 2M to 1T, such as 512M or 16G");
        }
    }
    if (const std::string_view text = variable("AWAKEN_TEST_DELAY_US"); !text.empty()) {
        if (const auto time = parse_microseconds(text)) {
            configuration.delay = *time;
        } else {
            configuration.problem =
                complain("AWAKEN_TEST_DELAY_US", text, "a number of microseconds from 0 to 60000000");
        }
    }
    if (const std::string_view text = variable("AWAKEN_TEST_IPC_OPEN_US"); !text.empty()) {
        const std::size_t plus = text.find('+');
        const auto fixed = parse_microseconds(text.substr(0, plus));
        const auto per_gib = parse_microseconds(plus == std::string_view::npos ? "0" : text.substr(plus + 1));
        if (fixed && per_gib) {
            configuration.ipc_open_time = {*fixed, *per_gib};
        } else {
            configuration.problem = complain(
                "AWAKEN_TEST_IPC_OPEN_US", text,
                "MICROSECONDS or MICROSECONDS+MICROSECONDS_PER_GIB, each from 0 to 60000000, such as 200+5900");
        }
    }
    if (const std::string_view text = variable("AWAKEN_TEST_BUSY"); text == "error") {
        configuration.busy_calls = BusyCalls::error;
    } else if (!text.empty() && text != "wait") {
        configuration.problem = complain("AWAKEN_TEST_BUSY", text, "wait or error");
    }
    read_streams(configuration);
    read_faults(configuration);
    // AMD's driver lets kernels fault host pages in where this is set, and where the GPU can.
    configuration.xnack = configuration.vendor == Vendor::hip && variable("HSA_XNACK") == "1";
    configuration.pageable_memory = configuration.faults.pageable_memory || configuration.xnack;
    read_links(configuration);
    return configuration;
}

}  // namespace awaken::emulator
