# SPDX-License-Identifier: Apache-2.0
"""Awaken on two machines that the launchers reach by ssh.

The machines are namespaces of this one: network, host name, mounts and so /dev/shm are their own, and so is the sshd,
with keys made for the test. One cable joins them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest

pytestmark = pytest.mark.long

Find = Callable[[str], harness.Mpi]

NAMES = ("node-a", "node-b")
HANDED_ON = f"{harness.MARK} TMPDIR"
"""What a launcher's ssh hands on, so that what it starts is found if it stays."""

SERVER = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
AcceptEnv {variables}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""

CLIENT = """\
IdentityFile {folder}/user_key
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking yes
BatchMode yes
SendEnv {variables}
"""


@dataclass(frozen=True)
class Machines:
    """Two machines, of which commands start on the first."""

    servers: dict[str, subprocess.Popen[bytes]]
    ssh: Path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.servers)

    def enter(self) -> list[str]:
        """Words before a command that is to run on the first machine."""
        server = next(iter(self.servers.values()))
        return ["nsenter", f"--target={server.pid}", "--net", "--uts", "--mount"]

    def shared_memory(self) -> list[Path]:
        """What lies in the machines' own /dev/shm."""
        return [file for server in self.servers.values() for file in Path(f"/proc/{server.pid}/root/dev/shm").iterdir()]


def make_keys(folder: Path, addresses: Sequence[str]) -> None:
    for key in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True, timeout=harness.HANG_S)
    public = (folder / "host_key.pub").read_text()
    known = "".join(f"{name},{address} {public}" for name, address in zip(NAMES, addresses))
    (folder / "known_hosts").write_text(known)


@pytest.fixture
def machines(network_spaces: dict[str, str], tmp_path: Path) -> Iterator[Machines]:
    missing = [program for program in ("sshd", "ssh", "ssh-keygen", "nsenter") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} missing (apt-get install openssh-server openssh-client util-linux)")
    make_keys(tmp_path, list(network_spaces))
    hosts = "127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for a, name in zip(network_spaces, NAMES))
    (tmp_path / "hosts").write_text(hosts)
    (tmp_path / "client").write_text(CLIENT.format(folder=tmp_path, variables=HANDED_ON))
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/client "$@"\n')
    ssh.chmod(0o755)
    with ExitStack() as ends:
        servers: dict[str, subprocess.Popen[bytes]] = {}
        for name, (address, space) in zip(NAMES, network_spaces.items()):
            settings = tmp_path / f"{name}.server"
            settings.write_text(SERVER.format(folder=tmp_path, address=address, variables=HANDED_ON))
            inside = f"hostname {name} && mount -t tmpfs none /dev/shm && mount --bind {tmp_path}/hosts /etc/hosts"
            # sshd wants this folder; /run itself belongs to the system.
            inside += " && mount -t tmpfs none /run && mkdir /run/sshd"
            inside += f" && exec {shutil.which('sshd')} -D -E {tmp_path}/{name}.log -f {settings}"
            command = ["ip", "netns", "exec", space, "unshare", "--mount", "--uts", "sh", "-c", inside]
            servers[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=harness.clean_environment())
            ends.callback(end, servers[name])
        found = Machines(servers, ssh)
        for name, server in servers.items():
            wait_for_answer(found, name, server, tmp_path / f"{name}.log")
        yield found


def end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait(timeout=harness.HANG_S)


def wait_for_answer(machines: Machines, name: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + harness.HANG_S
    while True:
        # Until the first machine has its namespaces, this looks for the other in ours, where it is not.
        command = [*machines.enter(), str(machines.ssh), name, "hostname"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
        if asked.returncode == 0:
            assert asked.stdout.strip() == name
            return
        said = f"{asked.stderr}{log.read_text() if log.exists() else ''}"
        assert server.poll() is None and time.monotonic() < deadline, said
        time.sleep(0.1)


def launcher(mpi: harness.Mpi, machines: Machines, on_each: int) -> list[str]:
    ranks = str(on_each * len(machines.names))
    if mpi.name == "openmpi":
        hosts = ",".join(f"{name}:{on_each}" for name in machines.names)
        agent = ["--prtemca", "plm_ssh_agent", str(machines.ssh)]
        return [str(mpi.mpiexec), *agent, "--host", hosts, "--map-by", f"ppr:{on_each}:node", "-n", ranks]
    words = [str(mpi.mpiexec), "-launcher", "ssh", "-launcher-exec", str(machines.ssh)]
    return [*words, "-hosts", ",".join(machines.names), "-ppn", str(on_each), "-n", ranks]


def run(mpi: harness.Mpi, machines: Machines, on_each: int, program: str, *options: str) -> tuple[str, dict[str, Any]]:
    """Runs a program of apps/ on both machines, under Awaken. What it printed, and the report."""
    path = harness.build_dir() / "apps" / mpi.name / program
    if not path.parent.is_dir():
        pytest.skip(f"{path.parent} was not built")
    folder = machines.ssh.parent
    report = folder / "report.json"
    settings = {"AWAKEN_EMULATE": "cuda:2", "AWAKEN_REPORT": str(report), "XDG_CACHE_HOME": str(folder)}
    settings["UCX_TLS"] = "tcp,self"  # or it finds out that the machines are one
    # Open MPI hands on the variables that it is told to.
    words = [word for name in (*settings, harness.MARK) for word in ("-x", name)] if mpi.name == "openmpi" else []
    each = ["sh", "-c", 'hostname && exec "$0" exec -- "$@"', str(harness.awaken()), str(path), *options]
    result = harness.run(
        [*machines.enter(), *launcher(mpi, machines, on_each), *words, *each],
        {**harness.clean_environment(), **mpi.environment, **settings},
        foreign_files=mpi.foreign_files,
    )
    result.check()
    left = [file.name for file in machines.shared_memory() if not file.name.startswith(mpi.foreign_files)]
    assert not left, f"left over in /dev/shm: {left}"
    # Each rank says on which machine it is.
    hosts = [line for line in result.output.splitlines() if line in machines.names]
    assert sorted(hosts) == sorted(machines.names * on_each), result.explain()
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["rank"] is None and found["size"] == len(hosts), "the report is not that of all ranks"
    return result.output, found


def calls(report: dict[str, Any], path: str) -> int:
    return int(report["totals"][path]["calls"])


@pytest.mark.parametrize("name", ["mpich", "mpi5", "openmpi"])
def test_ping_pong(name: str, machines: Machines, mpi_named: Find) -> None:
    options = ("--max-bytes", "1M")
    output, report = run(mpi_named(name), machines, 1, "ping_pong_gpu_aware", *options)
    sizes = re.findall(r"^Transfer size \(B\): +(\d+),", output, re.MULTILINE)
    assert list(map(int, sizes)) == [8 << power for power in range(18)], output
    assert calls(report, "pipelined") > 0 and calls(report, "direct") == 0


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_two_ranks_on_each(name: str, machines: Machines, mpi_named: Find) -> None:
    output, report = run(mpi_named(name), machines, 2, "reduce")
    assert re.search(r"^PASS reduce: .*, 4 ranks$", output, re.MULTILINE), output
    assert calls(report, "pipelined") > 0
