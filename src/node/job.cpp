// SPDX-License-Identifier: Apache-2.0
#include "node/job.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>

namespace awaken::node {

namespace {

const char* variable(const char* const name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

/// The first of the variables that holds a number >= 0; -1 when none does.
int number(const std::initializer_list<const char*> names) {
    for (const char* const name : names) {
        const char* const text = variable(name);
        if (text == nullptr) {
            continue;
        }
        int value = -1;
        const char* const end = text + std::strlen(text);
        if (const auto [stop, error] = std::from_chars(text, end, value);
            error == std::errc() && stop == end && value >= 0) {
            return value;
        }
    }
    return -1;
}

/// PMI-1 and PMI-2 give every rank a socket to the launcher's process on this node. So that process names the job: by
/// its id, and by its start time, since ids are used again. Empty where the socket leads to another machine, and where
/// that process has no id here (`hidden`).
std::string launcher_process(int& pid, bool& hidden) {
    const int descriptor = number({"PMI_FD"});
    if (descriptor < 0) {
        return {};
    }
    ucred other{};
    socklen_t length = sizeof other;
    if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &other, &length) != 0) {
        return {};
    }
    hidden = other.pid == 0;
    if (other.pid <= 0) {
        return {};
    }
    pid = other.pid;
    return std::to_string(other.pid) + "." + std::to_string(start_time_of(other.pid));
}

}  // namespace

namespace {

/// What /proc says of a process.
struct ProcessState {
    bool is_over;
    unsigned long long start_time;
};

/// Nothing when it cannot be read: no descriptor is free, there is no /proc, or it hides the process.
std::optional<ProcessState> state_of(const int pid) {
    // Of the process's first thread, which starts with it. What emulates a processor (qemu-user) makes up a process's
    // own /proc/PID/stat, so that the process itself would see another time there than others do.
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
    FILE* const file = std::fopen(path, "re");
    if (file == nullptr) {
        return std::nullopt;
    }
    char line[1024];
    const std::size_t size = std::fread(line, 1, sizeof line - 1, file);
    std::fclose(file);
    line[size] = '\0';
    // The second field is the command's name in brackets, which may itself hold blanks and brackets.
    const char* const name_end = std::strrchr(line, ')');
    char state = 0;
    long threads = 0;
    unsigned long long start_time = 0;
    constexpr int kFields = 3;  // the 3rd, the 20th and the 22nd
    if (name_end == nullptr ||
        std::sscanf(name_end + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu",
                    &state, &threads, &start_time) != kFields) {
        return std::nullopt;
    }
    // A first thread that has ended is no end of the process while others go on.
    return ProcessState{(state == 'Z' || state == 'X') && threads <= 1, start_time};
}

}  // namespace

unsigned long long start_time_of(const int pid) {
    const std::optional<ProcessState> state = state_of(pid);
    return state ? state->start_time : 0;
}

bool has_ended(const int pid, const unsigned long long start_time) {
    // Needs no descriptor. Any other error is no answer, or that of a process that runs.
    if (kill(pid, 0) != 0 && errno == ESRCH) {
        return true;
    }
    const std::optional<ProcessState> state = state_of(pid);
    return state && (state->is_over || (start_time != 0 && state->start_time != start_time));
}

/// "4(x2),3" -> 4 for nodes 0 and 1, 3 for node 2, as Slurm counts a step's tasks by node; -1 for anything else.
int tasks_of_node(const char* text, int node) {
    while (text != nullptr && *text != '\0') {
        const char* const end = text + std::strlen(text);
        int tasks = -1, nodes = 1;
        auto [stop, error] = std::from_chars(text, end, tasks);
        if (error != std::errc() || tasks < 0) {
            return -1;
        }
        if (std::strncmp(stop, "(x", 2) == 0) {
            const auto repeat = std::from_chars(stop + 2, end, nodes);
            if (repeat.ec != std::errc() || *repeat.ptr != ')' || nodes < 1) {
                return -1;
            }
            stop = repeat.ptr + 1;
        }
        if (*stop != ',' && *stop != '\0') {
            return -1;
        }
        if (node < nodes) {
            return tasks;
        }
        node -= nodes;
        text = *stop == ',' ? stop + 1 : stop;
    }
    return -1;
}

Job find_job(const std::string& chosen_name, const int pretended_nodes) {
    Job job;
    job.world_rank = number({"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID"});
    int local = number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"});
    if (local < 0) {
        local = tasks_of_node(variable("SLURM_STEP_TASKS_PER_NODE"), std::max(number({"SLURM_NODEID"}), 0));
    }
    const int local_rank =
        number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID"});
    job.local_ranks = local > 0 ? local : 0;

    int pid = 0;
    bool hidden = false;
    if (!chosen_name.empty()) {
        job.key = "job " + chosen_name;
        job.launcher = "the name " + chosen_name + ", given by hand";
    } else if (const char* const space = variable("PMIX_NAMESPACE")) {
        job.key = std::string("pmix ") + space;
        job.launcher = std::string("PMIx namespace ") + space;
        // A launcher that another job has started leaves that job's namespace in the environment of all its own jobs.
        if (const std::string process = launcher_process(pid, hidden); !process.empty()) {
            job.key += " pmi " + process;
        }
        hidden = false;
    } else if (variable("PMI_SPAWNED") != nullptr && number({"PMI_SPAWNED"}) != 0) {
        // Ranks of a spawned world have the same numbers as those of the world that spawned them.
        job.launcher = "spawned by another program";
    } else if (const std::string process = launcher_process(pid, hidden); !process.empty()) {
        job.key = "pmi " + process;
        job.launcher = "PMI connection to process " + std::to_string(pid);
    } else if (const char* const apid = variable("PALS_APID")) {
        job.key = std::string("pals ") + apid;
        job.launcher = std::string("PALS application ") + apid;
    } else if (variable("SLURM_JOB_ID") != nullptr && variable("SLURM_STEP_ID") != nullptr) {
        job.key = std::string("slurm ") + variable("SLURM_JOB_ID") + "." + variable("SLURM_STEP_ID");
        job.launcher = "Slurm step " + job.key.substr(6);
    }
    if (job.key.empty() && hidden) {
        job.why_unknown =
            "the launcher's process, which distinguishes this job from others, is in another pid namespace (AWAKEN_JOB "
            "names the job by hand)";
    }
    if (pretended_nodes > 1 && job.known() && local_rank >= 0 && local_rank < job.local_ranks) {
        // Blocks of ranks, as launchers fill nodes. Node n holds the local ranks [n * ranks / nodes, ...).
        const auto node_of = [&](const long rank) { return rank * pretended_nodes / job.local_ranks; };
        const long node = node_of(local_rank);
        int members = 0;
        for (int rank = 0; rank < job.local_ranks; ++rank) {
            members += node_of(rank) == node ? 1 : 0;
        }
        job.key += " node " + std::to_string(node);
        job.local_ranks = members;
    }
    return job;
}

}  // namespace awaken::node
