# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of this machine, with daemons of its own that need nothing outside of one temporary folder.

Each node is a slurmd in UTS and mount namespaces of its own. So it has a host name and a /dev/shm of its own, as nodes
have, and its tasks cannot find each other but by what Slurm and MPI tell them. GPUs are device files without a meaning,
which Slurm counts and hands out.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import harness

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo", "unshare")
PACKAGES = "slurm-wlm munge libpmix-dev"
GPUS_PER_NODE = 2
TASKS_PER_NODE = 8

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/%n.tmp
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
GresTypes=gpu
MpiDefault=none
KillWait=2
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES
"""


class ClusterError(Exception):
    """The cluster does not come up; the text has the logs."""


def why_not() -> str:
    """Empty where a cluster can be started."""
    if os.geteuid() != 0:
        return "needs root, for the nodes' namespaces"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{' and '.join(missing)} missing (apt-get install {PACKAGES})" if missing else ""


def outside_environment() -> dict[str, str]:
    """Ours without what an allocation that the tests run in would bring in."""
    return {name: value for name, value in harness.clean_environment().items() if not name.startswith("SLURM")}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Cluster:
    """Runs from start() to stop(). `environment` is what commands of Slurm need to find it."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        # Of a short name, for the socket; and below /tmp itself, as munged wants folders that nobody else may change.
        self.folder = Path(tempfile.mkdtemp(prefix="aws", dir="/tmp"))
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._mark = uuid.uuid4().hex
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when all nodes are ready for jobs."""
        self._configure()
        files = [f"--{what}={self.folder}/munge.{what[:-5]}" for what in ("key-file", "pid-file", "log-file")]
        files += [f"--seed-file={self.folder}/munge.seed", f"--socket={self.folder}/munge.socket"]
        self._spawn("munged", ["munged", "--foreground", "--num-threads=2", *files])
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())
        self._spawn("slurmctld", ["slurmctld", "-D"])
        for node in self.nodes:
            inside = f"hostname {node} && mount -t tmpfs none /dev/shm && exec slurmd -D -N {node}"
            self._spawn(node, ["unshare", "--mount", "--uts", "sh", "-c", inside])
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Returns when all nodes are ready and have got rid of what ran on them."""
        self._wait("slurmctld", self._is_idle)

    def stop(self) -> list[str]:
        """Ends all daemons and removes the folder. Returns what was still there then."""
        for name in (*self.nodes, "slurmctld", "munged"):
            daemon = self._daemons.pop(name, None)
            if daemon is not None and daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(timeout=harness.LEFTOVER_S)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
        left = harness.leftover_processes(self._mark)
        harness.kill_marked(self._mark)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def cancel_all(self) -> None:
        """Ends all jobs, also those whose srun was killed and did not tell."""
        subprocess.run(
            ["scancel", "--full", "--signal=KILL", "--user=root"],
            env={**outside_environment(), **self.environment},
            timeout=harness.HANG_S,
            check=False,
        )

    def shared_memory(self) -> list[Path]:
        """What lies in the nodes' own /dev/shm."""
        return [file for node in self.nodes for file in Path(f"/proc/{self._daemons[node].pid}/root/dev/shm").iterdir()]

    def log(self, name: str) -> str:
        """The end of a daemon's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _configure(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        port, *ports = free_ports(1 + len(self.nodes))
        text = CONFIGURATION.format(host=socket.gethostname(), port=port, folder=self.folder)
        devices = f"{self.folder}/gpu[0-{GPUS_PER_NODE - 1}]"
        gres = ""
        for node, node_port in zip(self.nodes, ports):
            text += f"NodeName={node} NodeAddr=127.0.0.1 Port={node_port} CPUs={TASKS_PER_NODE}"
            text += f" Gres=gpu:{GPUS_PER_NODE}\n"
            (self.folder / f"{node}.tmp").mkdir()
            gres += f"NodeName={node} Name=gpu File={devices}\n"
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(gres)
        for number in range(GPUS_PER_NODE):
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        variables = {**outside_environment(), **self.environment, harness.MARK: self._mark}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                list(command),
                env=variables,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_idle(self) -> bool:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%N %T"],
            env={**outside_environment(), **self.environment},
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )
        return asked.returncode == 0 and sorted(asked.stdout.splitlines()) == sorted(f"{n} idle" for n in self.nodes)

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + harness.HANG_S
        while not is_ready():
            ended = [one for one, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise ClusterError("\n".join(f"--- log of {one} ---\n{self.log(one)}" for one in [*ended, name]))
            time.sleep(0.1)
