// SPDX-License-Identifier: Apache-2.0
#include "trace/writer.h"

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "report/report.h"

namespace awaken::trace {

namespace {

constexpr std::string_view kHead = "{\"awakenTrace\":";
constexpr std::string_view kEvents = ",\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
constexpr std::string_view kTail = "]}";

/// Events of these kinds overlap, so they get rows of their own, with numbers from here on.
constexpr int kFirstRow = 1'000'000;

bool has_row(const Kind kind) noexcept {
    return kind == Kind::copy || kind == Kind::kernel || kind == Kind::background;
}

const char* category(const Kind kind) noexcept {
    switch (kind) {
        case Kind::call:
            return "mpi";
        case Kind::nonblocking:
            return "nonblocking";
        case Kind::range:
            return "range";
        case Kind::copy:
            return "copy";
        case Kind::kernel:
            return "kernel";
        case Kind::background:
            break;
    }
    return "background";
}

/// The rows in which events of one kind are drawn: as many as overlap at one time.
class Rows {
  public:
    /// The number of the first row that is free at `begin_ns`. Events come in the order of their begins.
    int place(const Kind kind, const int device, const std::uint64_t begin_ns, const std::uint64_t end_ns) {
        std::vector<Row>& rows = _rows[{kind, device}];
        auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.end_ns <= begin_ns; });
        if (row == rows.end()) {
            row = rows.insert(rows.end(), {0, _next++});
        }
        row->end_ns = end_ns;
        return row->number;
    }
    template <class Use>
    void for_each(const Use& use) const {
        for (const auto& [of, rows] : _rows) {
            const std::string place = of.second >= 0 ? "GPU " + std::to_string(of.second) + ": " : "";
            const char* const what = of.first == Kind::copy     ? "copies"
                                     : of.first == Kind::kernel ? "kernels"
                                                                : "background";
            for (std::size_t i = 0; i < rows.size(); ++i) {
                use(rows[i].number, place + what + (i > 0 ? " " + std::to_string(i + 1) : ""));
            }
        }
    }

  private:
    struct Row {
        std::uint64_t end_ns;
        int number;
    };
    std::map<std::pair<Kind, int>, std::vector<Row>> _rows;
    int _next = kFirstRow;
};

/// Microseconds with three decimals: the format's unit, without the rounding of a floating-point number.
struct Microseconds {
    explicit Microseconds(const std::int64_t nanoseconds) {
        const auto magnitude = static_cast<std::uint64_t>(std::llabs(nanoseconds));
        std::snprintf(text, sizeof text, "%s%" PRIu64 ".%03u", nanoseconds < 0 ? "-" : "", magnitude / 1000,
                      static_cast<unsigned>(magnitude % 1000));
    }
    char text[32];
};

std::string arguments_of(const Event& event, const bool open) {
    std::string text;
    const auto add = [&text](const char* const name, const std::string& value) {
        text += (text.empty() ? "\"" : ",\"") + std::string(name) + "\":" + value;
    };
    const bool is_mpi = event.kind == Kind::call || event.kind == Kind::nonblocking;
    if (is_mpi) {
        add("path", json_string(report::to_string(static_cast<report::Path>(event.path))));
    }
    if (event.kind == Kind::copy && !open) {
        add("by", json_string(report::to_string(static_cast<report::Mover>(event.path))));
    }
    if (event.bytes > 0) {
        add("bytes", std::to_string(event.bytes));
        // 2^64 is one more than 64 bits hold.
        const int size_class = report::size_class(event.bytes);
        add("size_class_bytes",
            size_class == 64 ? "18446744073709551616" : std::to_string(std::uint64_t{1} << size_class));
    }
    if (event.peer == kAnyPeer) {
        add("peer", "\"any\"");
    } else if (event.peer == kNullPeer) {
        add("peer", "\"none\"");
    } else if (event.peer != kNoPeer) {
        add("peer", std::to_string(event.peer));
    }
    if (event.members > 0) {
        add("ranks", std::to_string(event.members));
    }
    if (event.repeats > 0) {
        add("calls", std::to_string(std::uint64_t{event.repeats} + 1));
    }
    if (open) {
        add("open", "true");
    }
    return text;
}

std::string head_of(const Rank& rank, const Recorder& recorder) {
    Json offsets = Json::array();
    for (const std::optional<Offset>& offset : {rank.alignment.first, rank.alignment.last}) {
        if (offset) {
            offsets.push_back({{"at_ns", offset->at_ns},
                               {"offset_ns", offset->offset_ns},
                               {"uncertainty_ns", offset->uncertainty_ns}});
        }
    }
    return Json{{"version", 1},
                {"rank", rank.rank < 0 ? Json() : Json(rank.rank)},
                {"ranks", rank.ranks},
                {"process", rank.process},
                {"host", rank.host},
                {"mpi", rank.mpi},
                {"complete", rank.complete},
                {"dropped", recorder.dropped()},
                {"clock", Json{{"shared", rank.alignment.shared}, {"offsets", offsets}}}}
        .text();
}

/// Reads one line of a file, without its end. False at the end of the file.
class Lines {
  public:
    explicit Lines(const std::string& path) : _path(path), _stream(std::fopen(path.c_str(), "r"), std::fclose) {
        if (_stream == nullptr) {
            // NOLINTNEXTLINE(clang-analyzer-unix.Stream): there is no stream to close
            throw Error("the trace of a rank cannot be read from " + path + " (" + std::strerror(errno) + ")",
                        "collect the files of all ranks in one folder, and run awaken trace FOLDER");
        }
    }
    ~Lines() { std::free(_line); }
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;

    [[nodiscard]] bool next(std::string_view& line) {
        const ssize_t length = getline(&_line, &_capacity, _stream.get());
        if (length <= 0) {
            return false;
        }
        line = {_line, static_cast<std::size_t>(length)};
        if (line.ends_with('\n')) {
            line.remove_suffix(1);
        }
        return true;
    }
    [[noreturn]] void refuse(const char* const why) const {
        throw Error(_path + " is not the whole trace of a rank (" + why + ")",
                    "see whether the rank ended early or its disk was full; awaken trace says more");
    }

  private:
    const std::string _path;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> _stream;
    char* _line = nullptr;
    std::size_t _capacity = 0;
};

std::string rank_file(const std::string& folder, const int rank) {
    return folder + "/rank-" + std::to_string(rank) + ".json";
}

/// The object between kHead and kEvents.
std::string head_in(Lines& lines) {
    std::string_view line;
    if (!lines.next(line) || !line.starts_with(kHead) || !line.ends_with(kEvents)) {
        lines.refuse("it does not begin as one");
    }
    return std::string(line.substr(kHead.size(), line.size() - kHead.size() - kEvents.size()));
}

void put(std::FILE* const stream, const std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace

std::string file_name(const Rank& rank) {
    return rank.rank < 0 ? "process-" + std::to_string(rank.process) + ".json"
                         : "rank-" + std::to_string(rank.rank) + ".json";
}

void write_events(std::FILE* const stream, const Rank& rank, const Recorder& recorder, const std::uint64_t now_ns) {
    struct Timed {
        Event event;
        int row;
        bool open;
    };
    std::vector<Timed> events;
    std::set<int> threads;
    recorder.for_each([&](const int thread, const Event& event) {
        const bool open = event.end_ns == 0;
        events.push_back({event, thread, open});
        // An event that began on another thread after this thread looked at the clock has no length yet.
        events.back().event.end_ns = std::max(open ? now_ns : event.end_ns, event.begin_ns);
        if (!has_row(event.kind)) {
            threads.insert(thread);
        }
    });
    // An event that encloses others comes first.
    std::stable_sort(events.begin(), events.end(), [](const Timed& a, const Timed& b) {
        return a.event.begin_ns != b.event.begin_ns ? a.event.begin_ns < b.event.begin_ns
                                                    : a.event.end_ns > b.event.end_ns;
    });
    Rows rows;
    for (Timed& timed : events) {
        const Event& event = timed.event;
        if (has_row(event.kind)) {
            timed.row = rows.place(event.kind, event.device, event.begin_ns, event.end_ns);
        }
    }

    put(stream, kHead);
    put(stream, head_of(rank, recorder));
    put(stream, kEvents);
    const int process = rank.rank < 0 ? rank.process : rank.rank;
    const std::string name =
        rank.rank < 0 ? "process " + std::to_string(rank.process) : "rank " + std::to_string(rank.rank);
    std::fprintf(stream, "\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":%s}}", process,
                 json_string(name + " (" + rank.host + ")").c_str());
    std::fprintf(stream, ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
                 process, process);
    const auto name_row = [&](const int number, const std::string& text) {
        std::fprintf(stream, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":%s}}",
                     process, number, json_string(text).c_str());
        std::fprintf(
            stream,
            ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
            process, number, number);
    };
    for (const int thread : threads) {
        name_row(thread, "thread " + std::to_string(thread));
    }
    rows.for_each(name_row);

    std::uint64_t operations = 0;
    for (const Timed& timed : events) {
        const Event& event = timed.event;
        const std::int64_t begin = rank.alignment.aligned(event.begin_ns) - rank.origin_ns;
        const std::int64_t end = rank.alignment.aligned(event.end_ns) - rank.origin_ns;
        const std::string title = json_string(event.name != nullptr ? event.name : "");
        const std::string arguments = arguments_of(event, timed.open);
        if (event.kind == Kind::nonblocking) {
            // Begin and end of an asynchronous event find each other by category and id.
            ++operations;
            std::fprintf(stream,
                         ",\n{\"name\":%s,\"cat\":\"%s\",\"ph\":\"b\",\"id\":\"%d.%" PRIu64
                         "\",\"ts\":%s,\"pid\":%d,\"tid\":%d,\"args\":{%s}}",
                         title.c_str(), category(event.kind), process, operations, Microseconds(begin).text, process,
                         timed.row, arguments.c_str());
            std::fprintf(stream,
                         ",\n{\"name\":%s,\"cat\":\"%s\",\"ph\":\"e\",\"id\":\"%d.%" PRIu64
                         "\",\"ts\":%s,\"pid\":%d,\"tid\":%d}",
                         title.c_str(), category(event.kind), process, operations, Microseconds(end).text, process,
                         timed.row);
            continue;
        }
        std::fprintf(stream,
                     ",\n{\"name\":%s,\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%s,\"dur\":%s,\"pid\":%d,\"tid\":%d,"
                     "\"args\":{%s}}",
                     title.c_str(), category(event.kind), Microseconds(begin).text, Microseconds(end - begin).text,
                     process, timed.row, arguments.c_str());
    }
    std::fputs("\n", stream);
    put(stream, kTail);
    std::fputs("\n", stream);
}

void merge(std::FILE* const stream, const std::string& folder, const int ranks) {
    std::string heads;
    for (int rank = 0; rank < ranks; ++rank) {
        Lines lines(rank_file(folder, rank));
        heads += (heads.empty() ? "" : ",") + head_in(lines);
    }
    put(stream, kHead);
    put(stream, "{\"version\":1,\"ranks\":" + std::to_string(ranks) + ",\"merged\":[" + heads + "]}");
    put(stream, kEvents);
    bool first = true;
    for (int rank = 0; rank < ranks; ++rank) {
        Lines lines(rank_file(folder, rank));
        static_cast<void>(head_in(lines));
        std::string_view line;
        bool whole = false;
        while (!whole && lines.next(line)) {
            if (line == kTail) {
                whole = true;
                break;
            }
            if (line.ends_with(',')) {
                line.remove_suffix(1);
            }
            put(stream, first ? "\n" : ",\n");
            put(stream, line);
            first = false;
        }
        if (!whole) {
            lines.refuse("it ends too early");
        }
    }
    std::fputs("\n", stream);
    put(stream, kTail);
    std::fputs("\n", stream);
}

}  // namespace awaken::trace
