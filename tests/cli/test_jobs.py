# SPDX-License-Identifier: Apache-2.0
"""Child jobs: their limits, and that nothing is left of them, however the command that started them ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child_jobs
import harness
import pytest
from awaken import conformance, doctor, jobs, scale, suite, topo
from fake_mpi import FakeMpi


@pytest.fixture(autouse=True)
def built() -> None:
    child_jobs.skip_unless_built()


@pytest.fixture(name="mpi")
def _mpi(tmp_path: Path) -> FakeMpi:
    return FakeMpi(tmp_path / "mpi")


def until(true: Callable[[], bool], what: str) -> None:
    """Returns as soon as something is so."""
    deadline = time.monotonic() + harness.patient(harness.HANG_S)
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def rank_in_a_session_of_its_own(folder: Path) -> str:
    """Shell words that start a rank, and go on when it has noted its process in `folder`/rank. It never ends, and has
    no children."""
    os.mkfifo(folder / "never")
    rank = f"echo $$ > {folder}/part; mv {folder}/part {folder}/rank; read line < {folder}/never"
    return f"setsid sh -c '{rank}' > /dev/null 2>&1 & while [ ! -e {folder}/rank ]; do :; done"


def script(file: Path, text: str) -> Path:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("words", [["yes"], ["sh", "-c", "yes >&2"], ["sh", "-c", "tr '\\0' x < /dev/zero"]])
def test_a_job_that_never_stops_talking_is_ended_and_not_collected(words: list[str]) -> None:
    job = jobs.Job(words)
    with harness.ended_when_it_hangs():
        assert job.all_records(0.5, 10 * harness.HANG_S) == []
    assert job.timed_out
    assert 0 < len(job.errors) <= jobs.Job.KEPT_BYTES
    assert sum(map(len, job._said)) <= 3 * jobs.Job.KEPT_BYTES


def test_what_a_job_says_sends_no_commands_to_the_terminal() -> None:
    job = jobs.Job(["printf", r"\033[2Jgone µ\033]0;title\007\nawaken: a\tb\n"])
    assert job.all_records(harness.HANG_S, harness.HANG_S) == []
    assert job.errors == "\\x1b[2Jgone µ\\x1b]0;title\\x07\nawaken: a\tb\n"
    assert job.explanation() == "a\tb"


def test_each_sign_of_life_puts_the_deadline_off(tmp_path: Path) -> None:
    """The job says nothing more until its last sign was seen."""
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    sign = f"echo sign >&2; read line < {seen}"
    job = jobs.Job(["sh", "-c", f"{sign}; {sign}; echo result"])
    signs: list[bytes] = []
    deadlines: list[float] = []

    def progress(data: bytes) -> None:
        signs.append(data)
        deadlines.append(job._deadline)
        os.write(gate, b"\n")

    # Open all the time, so that no reader meets the end of a writer before it.
    gate = os.open(seen, os.O_RDWR)
    try:
        with harness.ended_when_it_hangs():
            assert job.output(2 * harness.HANG_S, progress) == b"result\n"
    finally:
        os.close(gate)
    assert (signs, job.status, job.timed_out) == ([b"sign\n"] * 2, 0, False)
    assert deadlines == sorted(set(deadlines)) and job._deadline > deadlines[-1]
    silent = jobs.Job(["sleep", "600"])
    assert silent.output(0.3) == b"" and silent.timed_out


def through_a_job(folder: Path) -> None:
    jobs.Job(["sleep", "600"]).output(harness.HANG_S)


def through_the_suite(folder: Path) -> None:
    suite.run_group(["sleep", "600"], os.environ, folder / "log", harness.HANG_S)


def through_scale(folder: Path) -> None:
    scale.execute(["sleep", "600"], harness.HANG_S, os.environ)


@pytest.mark.parametrize("start", [through_a_job, through_the_suite, through_scale])
def test_an_interrupt_while_a_job_is_being_started_leaves_nothing_behind(
    start: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is there already, and nobody knows it yet."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **named: Any) -> None:
            super().__init__(*words, **named)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    handler = signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)  # ignored where the tests run in a shell's background
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path)
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    left = [process.pid for process in started if alive(process.pid)]
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert len(started) == 1 and not left
    assert after is handler


def test_ranks_that_outlive_their_launcher_are_ended(tmp_path: Path) -> None:
    """The launcher is gone before anybody looks for what it has started, and the rank has left its session."""
    launcher = script(tmp_path / "mpiexec", rank_in_a_session_of_its_own(tmp_path))
    job = jobs.Job([str(launcher)])
    assert job.all_records(harness.HANG_S, harness.HANG_S) == []
    rank = int((tmp_path / "rank").read_text())
    until(lambda: not alive(rank), "the rank is still there")


def test_a_job_is_stopped_from_another_thread(tmp_path: Path) -> None:
    stop = threading.Event()
    job = jobs.Job(["sh", "-c", f"touch {tmp_path}/runs; sleep 600"], stop=stop)
    reader = threading.Thread(target=job.all_records, args=(600, 600))
    reader.start()
    until((tmp_path / "runs").exists, "it does not start")
    stop.set()
    reader.join(harness.patient(harness.HANG_S))
    assert not reader.is_alive() and not job.timed_out and job.status == -signal.SIGTERM


def test_after_a_crash_the_others_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.Job, "AFTERMATH_S", 0.3)
    job = jobs.Job(["sh", "-c", """echo '@awaken {"record":"crash"}'; exec tail -f /dev/null"""])
    with harness.ended_when_it_hangs():
        assert job.all_records(10 * harness.HANG_S, 10 * harness.HANG_S) == [{"record": "crash"}]
    assert job.timed_out


# --------------------------------------------------------------------------------------------------- ends and signals


def heed_signals() -> None:
    """Whoever runs the tests may ignore some (nohup), and processes inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(harness.awaken()), *words],
        env=child_jobs.environment(None, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ["doctor"]),
        (signal.SIGTERM, ["doctor"]),
        (signal.SIGHUP, ["doctor"]),
        (signal.SIGINT, ["topo", "--no-measure"]),
        (signal.SIGTERM, ["topo", "--no-measure"]),
    ],
)
def test_jobs_end_with_the_command(number: signal.Signals, words: list[str], tmp_path: Path) -> None:
    """The launcher passes no signal on, and its rank is in a session of its own."""
    launcher = script(
        tmp_path / "mpiexec",
        f"""if [ "$1" = --version ]; then echo HYDRA; exit; fi
{rank_in_a_session_of_its_own(tmp_path)}; wait""",
    )
    with started([*words, "--emulate", "cuda:2", "--mpiexec", str(launcher)], tmp_path) as process:
        until((tmp_path / "rank").exists, "no job is started")
        rank = int((tmp_path / "rank").read_text())
        assert alive(rank)
        process.send_signal(number)
        out, errors = process.communicate(timeout=harness.patient(harness.HANG_S))
    assert process.returncode == 128 + number
    # Of the doctor nothing is known yet; topo had looked at the GPUs before.
    assert ("Emulated GPUs" in out) if words[0] == "topo" else out == ""
    assert errors == "awaken: interrupted\n"
    until(lambda: not alive(rank), "the rank is still there")


def test_an_interrupted_matrix_ends_all_its_jobs_and_keeps_what_was_found(mpi: FakeMpi, tmp_path: Path) -> None:
    functions = [f"MPI_{number}" for number in range(48)]
    mpi.behave(functions=functions, native={f"MPI_{number} device": "hang" for number in (3, 17, 30)})
    file = tmp_path / "doctor.json"
    words = ["--matrix", "--kinds", "device", "--jobs", "3", "--no-cache", "--json", str(file)]
    with started(["doctor", "--emulate", "cuda:2", "--mpiexec", str(mpi.launcher), *words], tmp_path) as process:
        until(lambda: len(mpi.hanging) == 3, "no three jobs at once")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=harness.patient(harness.HANG_S))
    assert "Conformance" in out and "not tried" in out and "What would help" in out
    assert process.returncode == 130 and errors == f"awaken: interrupted: {file} has what was found\n"
    calls = len(mpi.calls)
    until(lambda: not any(map(alive, mpi.hanging)), "jobs are still there")
    report = json.loads(file.read_text())
    assert report["interrupted"] is True and report["native"]["gpu_aware"] is True
    natively = [cell["native"]["status"] for cell in report["matrix"]["cells"]]
    assert len(natively) == len(functions)
    assert natively[:3] == ["works"] * 3 and natively[3] == conformance.NOT_TRIED
    assert {cell["awaken"]["status"] for cell in report["matrix"]["cells"]} == {conformance.NOT_TRIED}
    assert len(mpi.calls) == calls, "it goes on starting jobs"


def test_an_earlier_result_stays_until_there_is_a_new_one(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(says="no PMI server")
    for command in (["doctor"], ["topo", "--gpus", "7"]):
        file = tmp_path / f"{command[0]}.json"
        file.write_text("precious")
        words = [*command, "--emulate", "cuda:2", "--mpiexec", str(mpi.launcher), "--json", str(file)]
        result = child_jobs.awaken(words, child_jobs.environment(None, tmp_path))
        assert result.status in (1, 2) and result.err, result
        assert file.read_text() == "precious"
        assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


# -------------------------------------------------------------------------------------------------------- the launcher


def test_an_mpi_that_refuses_root_is_told_in_one_line(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(
        says="-----\nmpirun.openmpi has detected an attempt to run as root.\n\nRunning as root is *strongly* "
        "discouraged\nthe variable OMPI_ALLOW_RUN_AS_ROOT=1 to indicate the desire to override this\n-----"
    )
    for command in ("doctor", "topo"):
        words = [command, "--emulate", "cuda:2", "--mpiexec", str(mpi.launcher)]
        result = child_jobs.awaken(words, child_jobs.environment(None, tmp_path))
        told = " ".join((result.out + result.err).split())
        assert "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in told
        assert "discouraged" not in told
        assert command == "topo" or (result.err.startswith("awaken: ") and result.err.count("\n") == 1)


def test_the_launcher_of_the_mpi_in_use_comes_before_that_of_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(*words: str) -> Path:
        folder = tmp_path.joinpath(*words)
        folder.mkdir(parents=True)
        return folder

    in_path = script(installed("path") / "mpiexec", "echo HYDRA")
    package = installed("package", "bin")
    monkeypatch.setattr(jobs, "required_program", lambda _name: package / "awaken")
    environment = {"PATH": str(in_path.parent)}

    def found(**more: str) -> str:
        return jobs.find_launcher("", {**environment, **more}).words[0]

    assert found() == str(in_path)
    beside = script(package / "mpirun", "echo HYDRA")
    assert found() == str(beside)
    assert found(PATH="/nonexistent") == str(beside)
    assert found(SLURM_JOB_ID="1") == str(beside)
    of_library = script(installed("mpi", "bin") / "mpiexec", "echo HYDRA")
    for place in ("mpi/lib/libmpi.so", "mpi/lib64/libmpi.so", "mpi/lib/x86_64-linux-gnu/libmpi.so"):
        assert found(AWAKEN_MPI=str(tmp_path / place)) == str(of_library)
    for place in ("libmpi.so.12", "mpi/lib/libmpi.so", str(tmp_path / "elsewhere" / "libmpi.so")):
        assert found(AWAKEN_MPI=place) == str(beside)
    assert jobs.find_launcher(str(in_path), environment).words[0] == str(in_path)


def test_where_launchers_are_told_to_put_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    hydra = jobs.Launcher(("mpiexec",), "mpich", "")
    assert hydra.command(2) == ["mpiexec", "-ppn", "2", "-n", "2"]
    assert hydra.command(2, one_per_node=True) == ["mpiexec", "-ppn", "1", "-n", "2"]
    assert hydra.command(8, spread=True) == ["mpiexec", "-n", "8"]
    ours = ["mpiexec", "--oversubscribe", "--map-by", "ppr:2:node", "-n", "2"]
    openmpi = jobs.Launcher(("mpiexec",), "openmpi", "")
    assert openmpi.command(2) == ours
    monkeypatch.setenv("SLURM_JOB_ID", "17")  # whose one task would be all that fits
    assert openmpi.command(2) == ours
    assert openmpi.command(8, spread=True) == ["mpiexec", "--oversubscribe", "-n", "8"]
    users = jobs.Launcher(("mpiexec", "--map-by", "numa"), "openmpi", "")
    assert users.command(2) == ["mpiexec", "--map-by", "numa", "--oversubscribe", "-n", "2"]


@pytest.mark.parametrize(
    ("words", "before", "ranks"),
    [
        ("mpiexec", "mpiexec", None),
        ("mpiexec -n 4", "mpiexec", 4),
        ("mpirun --bind-to core -np 4", "mpirun --bind-to core", 4),
        ("srun -N 2 --ntasks=8 --mpi=pmix", "srun -N 2 --mpi=pmix", 8),
        ("srun -n4", "srun", 4),
        ("srun -n {ranks}", "srun", None),
        ("mpiexec -n 4 numactl -l", "mpiexec -n {ranks} numactl -l", 4),
        ("mpiexec -n 0", "mpiexec -n 0", None),
        ("mpiexec -n 1 env A=1 : -n 1", "mpiexec -n 1 env A=1 : -n 1", None),
    ],
)
def test_launchers_may_name_the_ranks(words: str, before: str, ranks: int | None) -> None:
    """As they do where they are given to awaken bench."""
    found, number = jobs.named_ranks(tuple(words.split()))
    assert (jobs.without_ranks(found), number) == (tuple(before.split()), ranks)


def test_words_that_hold_the_place_of_the_ranks_stay_in_order() -> None:
    launcher = jobs.Launcher(("mpiexec", "-n", "{ranks}", "numactl", "-l"), "mpich", "")
    for spread in (True, False):
        assert launcher.command(3, spread=spread) == ["mpiexec", "-n", "3", "numactl", "-l"]


@pytest.mark.parametrize("option", ["--launcher", "--mpiexec"])
def test_the_doctor_takes_the_ranks_that_its_launcher_names(mpi: FakeMpi, tmp_path: Path, option: str) -> None:
    words = ["doctor", "--emulate", "cuda:2", option, f"{mpi.launcher} -n 3", "--no-cache"]
    result = child_jobs.awaken(words, child_jobs.environment(None, tmp_path))
    assert result.status == 0, result
    assert not [call for call in mpi.calls if call.count("-n ") != 1]
    assert any("-n 3 " in call for call in mpi.calls)  # the map of the ranks
    assert f"{mpi.launcher} -n 3 awaken exec ./app" in result.out


def test_a_shell_that_is_a_job_of_one_rank() -> None:
    assert not jobs.within_a_job({})
    assert jobs.within_a_job({"PMI_RANK": "0"}) and jobs.within_a_job({"PMI_RANK": "0", "PMI_SIZE": "2"})
    # Hydra starts its proxies by a step of one task.
    assert jobs.within_a_job({"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_STEP_NUM_TASKS": "1"})
    shell = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "n", "PMIX_MCA_gds": "hash", "SLURM_STEP_NUM_TASKS": "1", "HOME": "/"}
    assert not jobs.within_a_job(shell)
    jobs.leave_job(shell)
    assert shell == {"PMIX_MCA_gds": "hash", "SLURM_STEP_NUM_TASKS": "1", "HOME": "/"}


def test_in_a_shell_of_one_rank_the_doctor_goes_on(mpi: FakeMpi, tmp_path: Path) -> None:
    words = ["doctor", "--emulate", "cuda:2", "--mpiexec", str(mpi.launcher), "--no-cache"]
    variables = child_jobs.environment(None, tmp_path, PMI_RANK="0", PMI_SIZE="1", PMI_FD="5")
    result = child_jobs.awaken(words, variables)
    assert result.status == 0 and "Some MPI 1.0" in result.out, result


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("srun: error: Unable to create step for job 1: More processors requested than permitted", "--ntasks"),
        ("srun: error: mpi/pmix: unsupported PMI version", "--mpi=pmi2"),
        ("Fatal error in MPI_Init: no such device", "--mpi=pmi2"),
        ("srun: error: task 0: Segmentation fault", ""),
        ("the matrix has no function MPI_None", ""),
    ],
)
def test_advice_for_what_slurm_says(problem: str, advice: str) -> None:
    told = doctor.start_advice(jobs.Launcher(("srun",), "slurm", ""), problem)
    assert advice in told and bool(told) == bool(advice)


# ---------------------------------------------------------------------------------------------------------------- topo


def test_a_topology_program_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = script(tmp_path / "awaken-topology", "echo 'pairs: 1 of 8' >&2; sleep 600")
    monkeypatch.setattr(topo, "required_program", lambda _name: hangs)
    options = topo.parse(["--emulate", "cuda:2", "--limit", "1"])
    with pytest.raises(jobs.JobFailed, match=r"said nothing for 1 s$"):
        topo.look(options)


@pytest.mark.parametrize(
    ("bench", "why_not"),
    [
        ('{"runs": [{"contenders": [{"unavailable": null, "measurements": [{"size": 8}]}]}]}', "status 0"),
        ("nonsense", "status 0"),
        ('{"runs": [{"contenders": [{"unavailable": "no GPU", "measurements": []}]}]}', "no GPU"),
    ],
)
def test_a_curve_without_figures_is_no_crash(mpi: FakeMpi, bench: str, why_not: str) -> None:
    mpi.behave(bench=bench)
    options = topo.parse(["--emulate", "cuda:2", "--pretend-nodes"])
    report: dict[str, Any] = {"allocation": {"nodes": 1}, "network_cards": []}
    launcher = jobs.find_launcher(str(mpi.launcher), os.environ)
    answer = topo.measure_between_nodes(options, launcher, jobs.Surroundings("cuda:2"), report)
    assert why_not in answer["why_not"] and answer["points"] == []
