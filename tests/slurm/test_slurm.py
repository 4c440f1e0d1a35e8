# SPDX-License-Identifier: Apache-2.0
"""Awaken under Slurm: `srun` with the PMI of each MPI, launchers inside of an allocation, job steps, GPUs of tasks, and
the doctor, on a cluster of this machine (cluster.py). TEST_WRITE_PAGES=1 writes the transcript in docs/sites.md anew.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cluster as slurm
import harness
import pytest
import test_docs_commands as pages

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("slurm")]

Find = Callable[[str], harness.Mpi]

NODES = ("n1", "n2")
PMI = {"mpich": "pmi2", "mpi5": "pmi2", "openmpi": "pmix"}
"""How `srun` must start the ranks of an MPI."""
TWO_AND_TWO = ("-N", "2", "--ntasks-per-node=2")
SITES = harness.ROOT / "docs" / "sites.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    reason = slurm.why_not()
    if reason:
        pytest.skip(reason)
    one = slurm.Cluster(NODES)
    left: list[str] = []
    try:
        one.start()
        yield one
    finally:
        left = one.stop()
    assert not left, left


def run(
    cluster: slurm.Cluster,
    mpi: harness.Mpi,
    command: Sequence[str | Path],
    folder: Path,
    foreign_files: tuple[str, ...] = (),
    **more: str,
) -> harness.Result:
    """Runs a command of Slurm, which must leave nothing on any node, but for the files of MPIs that it kills."""
    cluster.wait_until_idle()
    variables = {
        **slurm.outside_environment(),
        **mpi.environment,
        **cluster.environment,
        "PATH": f"{harness.awaken().parent}:{mpi.mpiexec.parent}:{harness.ROOT / 'apps'}:{os.environ['PATH']}",
        "AWAKEN_EMULATE": "cuda:2",
        "XDG_CACHE_HOME": str(folder),
        "UCX_TLS": "tcp,self",  # or it finds out that the nodes are one machine
        **more,
    }
    result = harness.run([*map(str, command)], variables, foreign_files=mpi.foreign_files)
    if result.problems:
        cluster.cancel_all()
    result.check()
    left = cluster.shared_memory()
    for file in left:
        file.unlink()
    ours = [file.name for file in left if not file.name.startswith((*foreign_files, *mpi.foreign_files))]
    assert not ours, f"left over in the nodes' /dev/shm: {ours}\n{result.explain()}"
    return result


def app(mpi: harness.Mpi, name: str) -> Path:
    program = harness.build_dir() / "apps" / mpi.name / name
    if not program.parent.is_dir():
        pytest.skip(f"{program.parent} was not built")
    return program


def calls_by_path(report: Mapping[str, Any]) -> dict[str, int]:
    """Of one program run: path -> calls of functions that moved data."""
    return {path: sums["calls"] for path, sums in report["totals"].items() if sums["calls"] and path != "native"}


def reduce(
    cluster: slurm.Cluster, mpi: harness.Mpi, launcher: Sequence[str | Path], ranks: int, folder: Path
) -> dict[str, Any]:
    """Runs apps/examples/reduce, which checks its data, with the given words before `awaken`. Its report."""
    file = folder / "report.json"
    command = [*launcher, "awaken", "exec", "--", app(mpi, "reduce")]
    result = run(cluster, mpi, command, folder, AWAKEN_REPORT=str(file))
    assert re.search(rf"^PASS reduce: .*, {ranks} ranks$", result.output, re.MULTILINE), result.explain()
    report: dict[str, Any] = json.loads(file.read_text())
    assert report["rank"] is None and report["size"] == ranks, "the report is not that of all ranks"
    assert report["host"] in cluster.nodes
    return report


@pytest.mark.parametrize("name", PMI)
def test_one_node(name: str, cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    report = reduce(cluster, mpi_named(name), ["srun", f"--mpi={PMI[name]}", "-N", "1", "-n", "4"], 4, tmp_path)
    assert calls_by_path(report).keys() == {"direct"}


@pytest.mark.parametrize("name", PMI)
def test_two_nodes(name: str, cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    report = reduce(cluster, mpi_named(name), ["srun", f"--mpi={PMI[name]}", *TWO_AND_TWO], 4, tmp_path)
    assert calls_by_path(report).keys() == {"pipelined"}


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_messages_of_unequal_nodes(name: str, cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    """Two ranks on the first node and one on the second: some messages stay on a node, others leave it."""
    mpi = mpi_named(name)
    file = tmp_path / "report.json"
    program = mpi.programs / "between_nodes"
    command = ["srun", f"--mpi={PMI[name]}", "-N", "2", "-n", "3", "awaken", "exec", "--", str(program)]
    command += ["--gpu=cuda", "--mix=device", "--filter=all_to_all"]
    # MPICH 5.0.2 by itself fails in MPI_Init on nodes with unequally many ranks, told to use TCP alone and with a CUDA
    # driver at hand: Slurm's pmi2 says "value not properly terminated in client request". Why is not known.
    result = run(
        cluster, mpi, command, tmp_path, AWAKEN_REPORT=str(file), AWAKEN_TUNE="network_bytes=2K", UCX_TLS="all"
    )
    assert "\nok " in result.output, result.explain()
    assert {"direct", "pipelined"} <= calls_by_path(json.loads(file.read_text())).keys(), result.explain()


@pytest.mark.parametrize(
    ("name", "launcher"),
    [("mpich", ("mpiexec", "-ppn", "2", "-n", "4")), ("openmpi", ("mpiexec", "--map-by", "ppr:2:node", "-n", "4"))],
    ids=["mpich", "openmpi"],
)
def test_launcher_in_an_allocation(
    name: str, launcher: Sequence[str], cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path
) -> None:
    """The MPI's own launcher takes the nodes from Slurm, and reaches them by `srun`."""
    report = reduce(cluster, mpi_named(name), ["salloc", *TWO_AND_TWO, *launcher], 4, tmp_path)
    assert calls_by_path(report).keys() == {"pipelined"}


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_steps_beside_each_other(name: str, cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    """Ranks of two steps on one node have the same numbers and one /dev/shm, and must find those of their own step."""
    mpi = mpi_named(name)
    step = f"srun --overlap --mpi={PMI[name]} -n 4 awaken exec"
    script = (
        f'{step} --emulate cuda:2 --report="$1.cuda.json" "$0" & {step} --emulate hip:2 --report="$1.hip.json" "$0"'
    )
    both = f"{script}; first=$?; wait $! && exit $first"
    result = run(
        cluster, mpi, ["salloc", "-N", "1", "-n", "4", "sh", "-c", both, app(mpi, "reduce"), tmp_path / "r"], tmp_path
    )
    assert len(re.findall(r"^PASS reduce: .*, 4 ranks$", result.output, re.MULTILINE)) == 2, result.explain()
    for runtime in ("CUDA", "HIP"):
        report = json.loads((tmp_path / f"r.{runtime.lower()}.json").read_text())
        assert report["size"] == 4 and runtime in report["gpu"]["runtime"], report["gpu"]
        assert calls_by_path(report).keys() == {"direct"}


@pytest.mark.parametrize(
    "launcher",
    [("--gpus-per-task=1",), ("--gpus-per-node=2", "--gpu-bind=none", "bind_gpu.sh")],
    ids=["by_slurm", "by_bind_gpu"],
)
def test_gpus_of_tasks(launcher: Sequence[str], cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    """Each task sees one GPU, and messages still go from GPU to GPU."""
    report = reduce(cluster, mpi_named("mpich"), ["srun", "--mpi=pmi2", "-N", "1", "-n", "2", *launcher], 2, tmp_path)
    assert len(report["gpu"]["devices"]) == 1
    assert calls_by_path(report).keys() == {"direct"}


def doctor(
    cluster: slurm.Cluster, mpi: harness.Mpi, allocation: Sequence[str], options: Sequence[str], folder: Path
) -> dict[str, Any]:
    file = folder / "doctor.json"
    library = mpi.mpiexec.parent.parent / "lib" / {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}[mpi.name]
    command = ["salloc", *allocation, "awaken", "doctor", "--json", str(file), *options]
    run(cluster, mpi, command, folder, harness.FILES_OF_MPIS, AWAKEN_MPI=str(library))
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["works_with_awaken"] and not found["problems"], found["problems"]
    assert found["allocation"]["system"] == "slurm"
    return found


@pytest.mark.parametrize("options", [(), ("--launcher", "srun --mpi=pmi2")], ids=["mpiexec", "srun"])
def test_doctor_of_two_nodes(options: Sequence[str], cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    found = doctor(cluster, mpi_named("mpich"), TWO_AND_TWO, options, tmp_path)
    assert found["allocation"]["nodes"] == 2 and found["launcher"]["family"] == ("slurm" if options else "mpich")
    assert [rank["host"] for rank in found["placement"]["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert found["awaken"]["path"] == "direct"
    attempts = found["between_nodes"]["awaken"]
    assert attempts and {attempt["status"] for attempt in attempts} == {"works"}


def test_doctor_of_tasks_with_a_gpu_each(cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    options = ("--launcher", "srun --mpi=pmix --gpus-per-task=1", "--ranks", "2")
    found = doctor(cluster, mpi_named("openmpi"), ("-N", "1", "-n", "2", "--gpus=2"), options, tmp_path)
    addresses = [rank["gpu"]["pci_address"] for rank in found["placement"]["ranks"]]
    assert len(addresses) == len(set(addresses)) == 2
    assert found["between_nodes"] is None


def words(text: str) -> Counter[str]:
    """Without what differs from run to run: numbers, folders, where lines are wrapped, which stream came first."""
    return Counter(pages.plain(" ".join(text.split())).split())


def test_transcript_of_the_page(cluster: slurm.Cluster, mpi_named: Find, tmp_path: Path) -> None:
    text = SITES.read_text()
    found = re.search(r"(?<=<!-- slurm -->\n).*?(?=<!-- /slurm -->)", text, re.DOTALL)
    assert found, "docs/sites.md has lost the region between <!-- slurm --> and <!-- /slurm -->"
    mpi = mpi_named("mpich")
    program = app(mpi, "point_to_point")
    (tmp_path / "app").symlink_to(program)
    commands = pages.commands_of(SITES, found[0])
    assert commands
    transcript, problems = "", []
    for command in commands:
        script = f'cd "$0" && {command.text}'
        output = run(cluster, mpi, ["sh", "-c", script, tmp_path], tmp_path, harness.FILES_OF_MPIS).output.rstrip()
        output = output.replace(f"{harness.ROOT}/", ".../").expandtabs(2)
        transcript += f"$ {command.text}\n{output}\n"
        expected, got = words("\n".join(command.output)), words(output)
        if expected != got:
            problems.append(f"{command}\nmissing: {expected - got}\nnew: {got - expected}\n{output}")
    if os.environ.get("TEST_WRITE_PAGES"):
        SITES.write_text(text.replace(found[0], f"```console\n{transcript}```\n"))
    else:
        assert not problems, "\n".join(problems)
