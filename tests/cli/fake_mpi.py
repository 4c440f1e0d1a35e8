# SPDX-License-Identifier: Apache-2.0
"""A launcher that starts nothing: it answers in the place of the probe's ranks, as a file beside it tells it to.

With it, what the doctor makes of crashes, hangs and strange surroundings is tested in a fraction of a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LAUNCHER = r"""#!{python} -ES
import json, os, sys, time

folder = os.path.dirname(os.path.abspath(__file__))
told = json.load(open(os.path.join(folder, "behaviour.json")))
words = sys.argv[1:]
if words == ["--version"]:
    print(told["version"])
    sys.exit()
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(" ".join(words) + "\n")


def tell(what, /, **record):
    print("@awaken " + json.dumps(dict(record, record=what)), flush=True)


def hang():
    with open(os.path.join(folder, "hanging"), "a") as file:
        file.write(str(os.getpid()) + "\n")
    while True:
        time.sleep(60)


if told.get("says"):
    sys.exit(told["says"])
side = "awaken" if "AWAKEN=1" in words else "native"
ranks = int(words[words.index("-n") + 1])
what = next(word for word in words if word in ("facts", "hardware", "pairs", "sums", "cells", "bench"))
if what == told.get("hangs_at"):
    hang()
if what == "bench":
    print(told["bench"])
    sys.exit()
if what == "facts":
    for rank in range(ranks):
        gpu = dict(told["gpu"], device=rank % told["gpu"]["visible_devices"])
        gpu["pci_address"] = "0000:%02d:00.0" % gpu["device"]
        host = told["hosts"][rank % len(told["hosts"])]
        tell("rank", rank=rank, local_rank=rank, host=host, process=1, cpus=[0], cpus_online=1, numa_nodes=[0],
             awaken=side == "awaken", gpu=gpu)
    tell("mpi", ranks=ranks, mpi=told["mpi"])
    tell("libraries", gdrcopy={{}}, ccl={{"title": "NCCL 2"}})
elif what == "hardware":
    for rank in range(2):
        tell("ipc", rank=rank, owner=1 - rank, applies=True, same_gpu=told.get("same_gpu", False), works=True,
             copy_GBps=400.0)
    tell("host_path", rank=0, to_host_GBps=50.0, to_device_GBps=55.0)
elif what == "pairs":
    tell("pair", bytes=64, bandwidth_GBps=told["bandwidth_GBps"][side], both_GBps=1.0, latency_us=1.0, verified=True,
         path=told["path"] if side == "awaken" else "")
elif what == "sums":
    tell("sums", kind="device", ranks=2, same=told.get("same_sums", True))
elif what == "cells":
    kinds = words[words.index("--kinds") + 1].split(",")
    names = words[words.index("--functions") + 1].split(",") if "--functions" in words else told["functions"]
    cells = [(name, kind) for kind in kinds for name in names]
    first, end = int(words[words.index("--from") + 1]), int(words[words.index("--to") + 1])
    between_nodes = "-ppn 1" in " ".join(words)
    if between_nodes and told.get("no_second_node"):
        sys.exit("no route to the second node")
    tell("plan", cells=[dict(function=name, family="some", kind=kind) for name, kind in cells])
    for index in range(first, min(end, len(cells))):
        status = told["statuses"][side].get("%s %s" % cells[index], "works")
        if status == "no start":
            sys.exit("it cannot be started here")
        tell("begin", index=index)
        if status == "hang":
            hang()
        elif status == "slow":
            time.sleep(0.3)
        elif status == "crash":
            tell("crash", signal="SIGSEGV", rank=1)
            sys.exit(139)
        tell("end", index=index, status="works")
tell("done")
"""

MPI = {
    "name": "Some MPI 1.0",
    "library": "/opt/mpi/lib/libmpi.so",
    "library_version": "Some MPI 1.0",
    "standard": "4.0",
    "abi": "mpich",
    "build_id": "ab12",
    "says_gpu_aware": {},
}
GPU = {
    "vendor": "cuda",
    "runtime": "CUDA",
    "runtime_library": "libcuda.so.1",
    "visible_devices": 2,
    "name": "Some GPU",
    "uuid": "",
    "memory_bytes": 1 << 30,
    "numa_node": -1,
}


class FakeMpi:
    """The launcher in a folder of its own, and what it was called with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.launcher = folder / "mpiexec"
        self.launcher.write_text(LAUNCHER.format(python=sys.executable))
        self.launcher.chmod(0o755)
        self.behave()

    def behave(
        self,
        *,
        native: Mapping[str, str] | None = None,
        awaken: Mapping[str, str] | None = None,
        functions: Sequence[str] = ("MPI_Send", "MPI_Allreduce"),
        **changes: Any,
    ) -> None:
        """`native`, `awaken`: how cells ("MPI_Send device") end: works, slow, hang, crash, "no start"; works when not
        named."""
        behaviour = {
            "version": "HYDRA build details:\n    Version: 4.0",
            "hosts": ["here"],
            "mpi": MPI,
            "gpu": GPU,
            "functions": functions,
            "bandwidth_GBps": {"native": 40.0, "awaken": 380.0},
            "path": "direct",
            "statuses": {"native": dict(native or {}), "awaken": dict(awaken or {})},
            **changes,
        }
        (self.folder / "behaviour.json").write_text(json.dumps(behaviour))

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def hanging(self) -> list[int]:
        """Processes that have begun to hang."""
        file = self.folder / "hanging"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []
