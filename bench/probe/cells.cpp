// SPDX-License-Identifier: Apache-2.0
// The conformance matrix. A cell may crash, hang or fail, so each is announced before it is tried; whoever started the
// job sees from the last announcement which cell ended it, and starts another job behind that cell.
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <set>

#include "base/error.h"
#include "mpi/mpi_functions.h"
#include "probe/checks.h"
#include "probe/commands.h"
#include "probe/record.h"

namespace awaken::probe {
namespace {

using Clock = std::chrono::steady_clock;

/// Larger is worse: the worst of the ranks' counts.
enum class Status : int { works, unavailable, wrong_data, error };

const char* to_string(const Status status) {
    static constexpr std::array kNames = {"works", "unavailable", "wrong data", "error"};
    return kNames[static_cast<std::size_t>(status)];
}

struct Cell {
    const Function* function;
    bench::BufferKind kind;
};

std::vector<Function> chosen_functions(const Arguments& arguments) {
    std::vector<Function> all = functions(arguments.large_counts);
    std::set<std::string> unknown(arguments.functions.begin(), arguments.functions.end());
    std::erase_if(all, [&](const Function& function) {
        return unknown.erase(function.name) == 0 && !arguments.functions.empty();
    });
    if (!unknown.empty()) {
        throw Error("the matrix has no function " + *unknown.begin(),
                    "write names as in MPI_Send; functions for large counts need --large-counts");
    }
    return all;
}

/// How long a rank whose call has failed waits for the others, which may be waiting for its message.
constexpr std::chrono::seconds kPatience{2};

/// The worst status of all ranks. Ends the job when this rank has a problem and the others do not come.
Status agree(const Job& job, const Status mine) {
    const int own = static_cast<int>(mine);
    int worst = own;
    MPI_Request request = MPI_REQUEST_NULL;
    bench::check_mpi(MPI_Iallreduce(&own, &worst, 1, MPI_INT, MPI_MAX, job.communicator, &request), "MPI_Iallreduce");
    const auto deadline = Clock::now() + kPatience;
    int done = 0;
    while (done == 0) {
        bench::check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done == 0 && mine != Status::works && Clock::now() > deadline) {
            write_record({{"record", "abandoned"}, {"rank", job.rank}});
            MPI_Abort(job.communicator, 1);
        }
    }
    return static_cast<Status>(worst);
}

struct Attempt {
    Status status = Status::works;
    std::string text;
};

Attempt attempt(const auto& work) {
    try {
        work();
        return {};
    } catch (const CallFailed& failure) {
        return {Status::error, failure.what()};
    } catch (const WrongData& wrong) {
        return {Status::wrong_data, wrong.what()};
    } catch (const std::exception& error) {
        return {Status::error, error.what()};
    }
}

/// Why memory of a kind cannot be had here; empty when it can. Asked of all ranks together, and once.
class Availability {
  public:
    explicit Availability(const Job& job) : _job(job) {}

    const Attempt& of(const bench::BufferKind kind) {
        const auto known = _known.find(kind);
        if (known != _known.end()) {
            return known->second;
        }
        Attempt own;
        if (kind != bench::BufferKind::host && !_job.no_gpu.empty()) {
            own = {Status::unavailable, _job.no_gpu};
        } else {
            own = attempt([&] { Integers(*_job.placement.gpu, _job.placement.device, kind, Values(16, kBlank)); });
            if (own.status != Status::works) {
                own.status = Status::unavailable;
            }
        }
        own.status = agree(_job, own.status);
        if (own.status != Status::works && own.text.empty()) {
            own.text = "another rank has no such memory";
        }
        return _known.emplace(kind, own).first->second;
    }

  private:
    const Job& _job;
    std::map<bench::BufferKind, Attempt> _known;
};

void try_cell(const Job& job, const Cell& cell, const std::size_t index, Availability& availability) {
    const bool speaks = job.rank == 0;
    const auto end = [&](const char* const status, const std::string& text = "") {
        if (!speaks) {
            return;
        }
        Json record = {{"record", "end"}, {"index", index}, {"status", status}};
        if (!text.empty()) {
            record["text"] = text;
        }
        write_record(record);
    };
    if (speaks) {
        write_record({{"record", "begin"}, {"index", index}});
        let_records_be_read();
    }
    // No rank may end the job before all that came before is told, or the crash would be blamed on an earlier cell.
    agree(job, Status::works);
    if (!cell.function->check) {
        end("absent");
        return;
    }
    if (const Attempt& memory = availability.of(cell.kind); memory.status != Status::works) {
        end("unavailable", memory.text);
        return;
    }
    // Tags may be as large as 32767 in every MPI.
    Trial trial(job.placement, job.communicator, cell.kind, static_cast<int>(index % 16384) + 1);
    const Attempt own = attempt([&] { cell.function->check(trial); });
    if (own.status != Status::works) {
        write_record({{"record", "problem"},
                      {"index", index},
                      {"rank", job.rank},
                      {"status", to_string(own.status)},
                      {"text", own.text}});
        let_records_be_read();
    }
    end(to_string(agree(job, own.status)));
}

}  // namespace

void try_cells(const Job& job, const Arguments& arguments) {
    const std::vector<Function> chosen = chosen_functions(arguments);
    std::vector<Cell> cells;
    for (const bench::BufferKind kind : arguments.kinds) {
        for (const Function& function : chosen) {
            cells.push_back({&function, kind});
        }
    }
    if (job.ranks < 2) {
        throw Error("the matrix needs at least 2 ranks, and this job has one",
                    "start it with mpiexec -n 2; when every process is alone, the launcher is of another MPI");
    }
    if (job.rank == 0) {
        Json plan = Json::array();
        for (const Cell& cell : cells) {
            plan.push_back({{"function", cell.function->name},
                            {"family", cell.function->family},
                            {"kind", bench::to_string(cell.kind)}});
        }
        write_record({{"record", "plan"}, {"cells", plan}});
    }
    Availability availability(job);
    for (std::size_t index = arguments.first; index < std::min(arguments.end, cells.size()); ++index) {
        try_cell(job, cells[index], index, availability);
    }
    if (job.rank == 0) {
        write_record({{"record", "done"}});
    }
}

}  // namespace awaken::probe
