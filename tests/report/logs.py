# SPDX-License-Identifier: Apache-2.0
"""Results in the forms that the readers know, made from given figures: what a reader finds must be what was put in.

The forms are those of the programs' own output; docs/reports.md says which versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[tuple[int, float]]
"""Bytes, and microseconds or MB/s."""

OSU_DIALECTS = ("5.3.2", "7.0", "7.2", "7.3", "7.4", "7.5")


def osu(version: str, rows: Rows, *, title: str = "Latency", bandwidth: bool = False, full: bool = False) -> str:
    """A log of one test of the OSU micro-benchmarks: point-to-point, or with `full` a collective with -f."""
    value = "Bandwidth (MB/s)" if bandwidth else "Avg Latency(us)" if full or version >= "7.4" else "Latency (us)"
    size = f"# {'Size':8}"
    extra = "   Min Latency(us)   Max Latency(us)  Iterations" if full and version != "7.3" else ""
    names = f"{size}{value:>18}{extra}"
    datatype = "# Datatype: MPI_CHAR."
    head = {"7.2": [names, datatype]}.get(version, [datatype, names])
    if version < "7.1":
        sides = ["# Send Buffer on DEVICE (D) and Receive Buffer on HOST (H)"] if not full and version == "7.0" else []
        head = [*sides, names]
    lines = ["", f"# OSU MPI-CUDA {title} Test v{version}", *head]
    for size_bytes, number in rows:
        spread = f"{number * 0.5:18.2f}{number * 2:18.2f}{100:12d}" if full else ""
        lines.append(f"{size_bytes:<10d}{number:18.2f}{spread}")
    return "\n".join(lines) + "\n"


def shell(commands: Sequence[tuple[str, str]]) -> str:
    """A transcript: what was typed, and what that printed."""
    return "".join(f"user@node:~/omb> {typed}\n{printed.lstrip()}" for typed, printed in commands)


def osu_one_sided(
    version: str,
    rows: Rows,
    *,
    title: str = "MPI_Put-CUDA Latency",
    synchronisation: str = "MPI_Win_flush",
    validation: str = "",
) -> str:
    """A log of a one-sided test; with `validation`, the last row's text in that column is this."""
    names = f"{'# Size':10}{'Bandwidth (MB/s)' if 'Bandwidth' in title else 'Latency (us)':>18}"
    lines = [
        f"# OSU {title} Test v{version}",
        "# Window creation: MPI_Win_allocate",
        f"# Synchronization: {synchronisation}",
        *(["# Datatype: MPI_CHAR."] if version >= "7.1" else []),
        "# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on HOST (H)",
        names + (f"{'Validation':>18}" if validation else ""),
    ]
    for size_bytes, number in rows:
        verdict = validation if size_bytes == rows[-1][0] else "passed"
        lines.append(f"{size_bytes:<10d}{number:18.2f}" + (f"{verdict:>18}" if validation else ""))
    return "\n".join(lines) + "\n"


NCCL_KEYS = f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}"
NCCL_HALF = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}"


def nccl_tests(
    program: str, rows: Rows, *, ranks: int = 2, old: bool = False, per_iteration: bool = False, wrong: int = 0
) -> str:
    """Output of a program of nccl-tests; in place takes twice as long as out of place."""
    lines = (
        []
        if old
        else [
            "# nccl-tests version 2.19.6 nccl-headers=22807 nccl-library=22807",
            f"# Collective test starting: {program}",
        ]
    )
    if old:
        lines.append(f"$ mpirun -np {ranks} ./build/{program} -b 8 -e 1M -f 2")
    lines += [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2} Group  0 Pid {1000 + rank:6} on      node1 device {rank:2} [0000:0{rank}:00] NVIDIA H200"
        for rank in range(ranks)
    ]
    last = "error" if old else "#wrong"
    root = "" if old else f"  {'root':>6}"
    iteration = f"  {'i_min':>7}  {'i_max':>7}  {'i_p99':>7}  {'i_cv%':>7}" if per_iteration else ""
    half = f"{NCCL_HALF}  {last:>6}{iteration}"
    lines += ["#", f"#{'':54}out-of-place                       in-place          ", f"{NCCL_KEYS}{root}{half}{half}"]
    lines.append(f"# {'(B)':>10}  {'(elements)':>12}")
    for size_bytes, time_us in rows:
        keys = f"{size_bytes:12}  {size_bytes // 4:12}  {'float':>8}  {'sum':>6}" + ("" if old else f"  {-1:6}")
        halves = ""
        for time in (time_us, 2 * time_us):
            rate = size_bytes / time * 1e-3
            halves += f"  {time:7.2f}  {rate:6.2f}  {rate:6.2f}  {'0e+00' if old else wrong:>6}"
            halves += f"  {time * 0.5:7.2f}  {time * 2:7.2f}  {time * 1.9:7.2f}  {3:7.2f}" if per_iteration else ""
        lines.append(keys + halves)
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 7.5", "#"]) + "\n"


def first_nccl_tests(
    rows: Rows, *, program: str = "", listed: int = 2, gpus: int = 2, difference: float = 0.0, failed: int = 0
) -> str:
    """Output of a program of nccl-tests of 2017, whose times are milliseconds; in place takes twice as long as out of
    place. `difference` is that of each row from the right values."""
    lines = [f"$ ./build/{program} -g {gpus}"] if program else []
    lines += [
        f"nThread 1 nGpus {gpus} minBytes 9 maxBytes 33554432 step: 1048576(bytes) warmup iters: 5 iters: 20 "
        "validation: 1 ",
        "# NCCL Tests compiled with NCCL 2.1",
        "# Using devices",
    ]
    lines += [f"#   Rank {rank:2} on      node1 device {rank:2} [0x0{rank}] Tesla P40" for rank in range(listed)]
    half = f"  {'time':>7}  {'algbw':>5}  {'busbw':>5}  {'res':>7}"
    lines += ["", f"#{'':46}out-of-place                    in-place"]
    lines += [f"# {'bytes':>10}  {'N':>12}  {'type':>6}  {'op':>6}{half}{half}"]
    for size_bytes, time_us in rows:
        halves = ""
        for time in (time_us, 2 * time_us):
            rate = size_bytes / time * 1e-3
            halves += f"  {time * 1e-3:7.3f}  {rate:5.2f}  {rate:5.2f}  {difference:7.0e}"
        lines.append(f"{size_bytes:12}  {size_bytes // 4:12}  {'float':>6}  {'sum':>6}{halves}")
    lines += [f" Out of bounds values : {failed} {'FAILED' if failed else 'OK'}", " Avg bus bandwidth    : 3.61 ", ""]
    return "\n".join(lines) + "\n"


def ucc_perftest(
    collective: str, rows: Rows, *, memory: str = "cuda", in_place: bool = False, full: bool = False, head: bool = True
) -> str:
    """Output of ucc_perftest; with `full`, that of -F. Other ranks take half and twice the mean."""
    lines = [
        f"{'Collective: ':24}{collective}",
        f"{'Memory type: ':24}{memory}",
        f"{'Datatype: ':24}float32",
        f"{'Reduction: ':24}sum",
        f"{'Inplace: ':24}{int(in_place)}",
        f"{'Warmup:':24}",
        f"{'  small':24}100",
        f"{'Iterations:':24}",
        f"{'  small':24}1000",
        "",
    ]
    lines = lines if head else []
    lines += [f"{'Count':>12}{'Size':>12}{'Time, us':>24}" + (f"{'Bandwidth, GB/s':>42}" if full else "")]
    lines += [f"{'avg':>36}{'min':>12}{'max':>12}" + (f"{'avg':>12}{'max':>12}{'min':>12}" if full else "")]
    for size_bytes, mean in rows:
        keys = ("N/A", "N/A") if collective == "Barrier" else (size_bytes // 4, size_bytes)
        times = "".join(f"{value:12.2f}" for value in (mean, mean / 2, mean * 2))
        lines.append(f"{keys[0]:>12}{keys[1]:>12}{times}" + (f"{1:12.2f}{2:12.2f}{0.5:12.2f}" if full else ""))
    return "\n".join([*lines, "Total time: 1.5 ms"]) + "\n"


def pasted(imb_log: str, name: str = "") -> str:
    """A table of the Intel MPI Benchmarks without what is around it, below a line with this name."""
    lines = imb_log.splitlines()
    first = next(index for index, line in enumerate(lines) if "[usec]" in line or "Mbytes/sec" in line)
    table = [" ".join(line.split()) for line in lines[first:] if line and not line.startswith("#")]
    return "\n".join([name, *table]) + "\n"


def imb(benchmark: str, rows: Rows, *, ranks: int = 2) -> str:
    """Output of IMB-MPI1 or IMB-NBC; the form follows from the benchmark's name."""
    rule = "#" + "-" * 51
    head = [
        rule, "#    Intel(R) MPI Benchmarks 2021.11, MPI-1 part", rule,
        "# MPI_Datatype                   :   MPI_BYTE ", "# MPI_Datatype for reductions    :   MPI_FLOAT ", "",
        "# List of Benchmarks to run:", "", f"# {benchmark}", "",
        rule, f"# Benchmarking {benchmark} ", f"# #processes = {ranks} ", rule,
    ]  # fmt: skip
    lines = []
    if benchmark in ("PingPong", "PingPing"):
        head.append("       #bytes #repetitions      t[usec]   Mbytes/sec")
        lines = [f"{size:13}{1000:13}{value:13.2f}{size / value:13.2f}" for size, value in rows]
    elif benchmark in ("Uniband", "Biband"):
        head.append("       #bytes #repetitions   Mbytes/sec      Msg/sec")
        lines = [f"{size:13}{20:13}{value:13.2f}{round(value * 1e6 / size):13}" for size, value in rows]
    elif benchmark.startswith("I") and benchmark != "Ibarrier":
        head.append("       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]")
        lines = [f"{size:13}{10:13}{value:13.2f}{value:13.2f}{value:13.2f}{50:13.2f}" for size, value in rows]
    elif benchmark == "Barrier":
        head.append(" #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]")
        lines = [f"{1000:13}{value * 0.5:13.2f}{value * 2:13.2f}{value:13.2f}" for _, value in rows]
    else:
        head.append("       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]")
        lines = [f"{size:13}{1000:13}{value * 0.5:13.2f}{value * 2:13.2f}{value:13.2f}" for size, value in rows]
    return "\n".join([*head, *lines, "", "", "# All processes entering MPI_Finalize", ""]) + "\n"


def ping_pong(rows: Rows) -> str:
    form = "Transfer size (B): {:10d}, Transfer Time (s): {:15.9f}, Bandwidth (GB/s): {:15.9f}"
    return "".join(form.format(size, us * 1e-6, size / us * 1e6 / 2**30) + "\n" for size, us in rows)


# ---------------------------------------------------------------------------------------------------------------- JSON


def measurement(
    size_bytes: int, median_us: float, *, width: float = 0.01, drift: float = 0.0, errors: int = 0
) -> dict[str, Any]:
    """A size of `awaken bench`, with 100 samples that drift by a part of the median from begin to end."""
    samples = [median_us * (1 + drift * (index / 99 - 0.5)) for index in range(100)]
    return {
        "size": size_bytes,
        "transmit_size": 0,
        "iterations": 100,
        "iterations_per_sample": 1,
        "average_us": median_us,
        "minimum_us": median_us,
        "maximum_us": median_us,
        "bandwidth_MBps": size_bytes / median_us,
        "overlap": None,
        "summary": {
            "count": 100,
            "mean_us": median_us,
            "median_us": median_us,
            "median_95_us": [median_us * (1 - width), median_us * (1 + width)],
        },
        "errors": errors,
        "validated": True,
        "samples_us": samples,
    }


def contender(
    name: str, measurements: Sequence[Mapping[str, Any]], *, mode: str = "waited", unavailable: str = ""
) -> dict[str, Any]:
    description = {"xccl": "NCCL 2.27.3", "awaken": "MPICH 5.0.2 through Awaken", "native": "MPICH 5.0.2"}.get(
        name, name
    )
    return {
        "name": name,
        "mode": mode,
        "unavailable": unavailable,
        "description": description,
        "measurements": list(measurements),
    }


def bench(
    test: str, contenders: Sequence[Mapping[str, Any]], *, ranks: int = 2, manifest: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A file of `awaken bench --json`, on device buffers."""
    facts = {
        "mpi": "MPICH Version: 5.0.2",
        "date": "2025-01-02T03:04:05Z",
        "rank_0": "node1: rank 0 on GPU 0 (NVIDIA H200, 0000:10:00.0)",
    }
    return {
        "schema": "awaken-bench",
        "version": 1,
        "manifest": {**facts, **(manifest or {})},
        "options": {"sides": ["D", "D"], "accelerator": "none"},
        "runs": [{"test": test, "type": "MPI_CHAR", "ranks": ranks, "contenders": list(contenders)}],
    }


def path_report(calls: Sequence[tuple[str, str, int, int]], reason: str = "") -> dict[str, Any]:
    """A file of AWAKEN_REPORT: function, path, calls, bytes."""
    return {
        "schema": "awaken-report",
        "version": 1,
        "rank": None,
        "size": 2,
        "host": "node1",
        "mpi": {"version": "MPICH Version: 5.0.2", "library": "/lib/libmpi.so.12", "abi": "MPICH"},
        "gpu": {"runtime": "CUDA driver 13.0", "devices": ["NVIDIA H200"]},
        "calls": [
            {
                "function": function,
                "path": path,
                "size_class_bytes": 1024,
                "calls": count,
                "bytes": size,
                "time_ns": 1000,
            }
            for function, path, count, size in calls
        ],
        "copies": {
            "engine": {"copies": 30, "bytes": 9000},
            "kernel": {"copies": 0, "bytes": 0},
            "cpu": {"copies": 2, "bytes": 80},
        },
        "fallbacks": [{"function": "MPI_Send", "reason": reason, "count": 3}] if reason else [],
    }


def trace(spans: Sequence[tuple[int, str, str, float, float]]) -> dict[str, Any]:
    """A trace: rank, name, category, begin and length in microseconds."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "pid": rank, "tid": 0, "name": name, "cat": category, "ts": begin, "dur": length}
        for rank, name, category, begin, length in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def doctor(*, native: str = "crash", with_awaken: str = "works", matrix: bool = True) -> dict[str, Any]:
    """A file of `awaken doctor --matrix --json`."""
    functions, kinds = ("MPI_Send", "MPI_Allreduce", "MPI_Win_create"), ("host", "device")
    cells = [
        {
            "function": function,
            "family": "any",
            "kind": kind,
            "native": {"status": "works" if kind == "host" else native, "text": "SIGSEGV at rank 0"},
            "awaken": {
                "status": "refused" if function == "MPI_Win_create" and kind == "device" else with_awaken,
                "text": "",
            },
        }
        for function in functions
        for kind in kinds
    ]
    attempt = {"function": "MPI_Send", "family": "any", "kind": "device", "status": native, "text": ""}
    report: dict[str, Any] = {
        "schema": "awaken-doctor",
        "version": 1,
        "date": "2025-01-02T03:04:05Z",
        "host": "node1",
        "emulated": False,
        "launcher": {"words": ["mpiexec"], "family": "hydra", "version": "5.0.2"},
        "mpi": {"name": "MPICH 5.0.2", "library": "/lib/libmpi.so.12", "abi": "mpich"},
        "gpu": {"found": True, "name": "NVIDIA H200", "visible_devices": 2},
        "native": {"gpu_aware": native == "works", "attempts": [attempt], "transport": "none", "why": ""},
        "awaken": {
            "gpu_aware": with_awaken == "works",
            "attempts": [{**attempt, "status": with_awaken}],
            "transport": "direct",
            "why": "300 GB/s; a raw copy 330, through the host at most 50",
            "latency_us": 9.5,
            "verified": True,
        },
        "hardware": {"ipc": [{"rank": 1, "owner": 0, "works": True, "copy_GBps": 330.0}], "peer": [{"does": True}]},
        "placement": {"ranks": [], "warnings": [{"text": "ranks 0-1 may run on any processor"}]},
        "advice": [
            {"what": "bind ranks", "why": "they may run anywhere", "command": "mpiexec -bind-to numa -n 2 ./app"}
        ],
        "problems": [],
    }
    if matrix:
        report["matrix"] = {"kinds": list(kinds), "ranks": 2, "cells": cells}
    return report


def as_text(value: Any) -> str:
    return json.dumps(value)


def topology(gpus: int = 4, *, skipped: str = "no peer access") -> dict[str, Any]:
    """A file of `awaken topo --json`; the last GPU cannot be reached by kernels."""

    def bandwidth(value: float, limit: float) -> dict[str, float]:
        return {"median_GBps": value, "least_GBps": value, "most_GBps": value, "percent_of_limit": 100 * value / limit}

    pairs: list[dict[str, Any]] = []
    for method in ("copy engine", "kernel"):
        for gpu in range(gpus):
            for peer in ["host", *(other for other in range(gpus) if other != gpu)]:
                value = 55.0 if peer == "host" else 380.0 + gpu
                reached = method == "copy engine" or peer != gpus - 1
                figures = {name: bandwidth(value, 450.0) if reached else None for name in ("read", "write", "both")}
                why = {"skipped": None if reached else skipped, "failed": None}
                latency = 9.5 if reached else None
                pairs.append({"gpu": gpu, "peer": peer, "method": method, **figures, "latency_us": latency, **why})
    together: list[dict[str, Any]] = [{"from": "all", "method": "copy engine", "together": bandwidth(1900.0, 450.0)}]
    together.append({"from": 0, "method": "kernel", "together": None, "skipped": skipped})
    links = [
        {"gpu": gpu, "peer": peer, "type": "NVSwitch", "links": 18, "limit_what": "18 NVLink 4, 450 GB/s"}
        for gpu in range(gpus)
        for peer in range(gpus)
        if gpu != peer
    ]
    messages = [
        {
            "sender": link["gpu"],
            "receiver": link["peer"],
            "bandwidth_GBps": 370.0,
            "percent_of_limit": 82.2,
            "both_GBps": 700.0,
            "both_percent_of_limit": 77.8,
            "latency_us": 10.5,
            "verified": True,
        }
        for link in links
    ]
    return {
        "schema": "awaken-topology",
        "version": 1,
        "host": "node1",
        "emulated": False,
        "gpus": [
            {"gpu": gpu, "name": "NVIDIA H200", "pci_address": f"0000:{gpu}0:00.0", "numa_node": gpu // 2}
            for gpu in range(gpus)
        ],
        "links": links,
        "network_cards": [{"name": "mlx5_0", "rate": "400 Gb/s (4X NDR)", "gpus": [{"gpu": 0, "pci_path": "PIX"}]}],
        "raw": {"bytes": 536870912, "data_checked": True, "pairs": pairs, "together": together},
        "mpi": {
            "name": "MPICH 5.0.2",
            "native": {"why_not": "MPI_Send of device memory: crash", "pairs": []},
            "awaken": {"why_not": None, "pairs": messages},
        },
        "ranks": [{"rank": 0, "host": "node1", "gpu": {"device": 0}}],
        "placement_warnings": [{"text": "ranks 0 and 1 share GPU 0"}],
        "between_nodes": {
            "pretended": True,
            "why_not": None,
            "points": [{"bytes": 8 << i, "bandwidth_MBps": 10.0 * 2**i} for i in range(8)],
        },
        "problems": [],
    }
