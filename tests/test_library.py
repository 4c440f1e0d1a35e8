# SPDX-License-Identifier: Apache-2.0
"""The library as a file, its errors at start, its checks, and injected faults of the GPU driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

FAKE_MPI = r"""
#include <string.h>
int %(extra)s;
int PMPI_Init(int* c, char*** v) { (void)c; (void)v; return 0; }
int MPI_Init(int* c, char*** v) { return PMPI_Init(c, v); }
int PMPI_Send(void) { return 0; }
int PMPI_Get_library_version(char* text, int* length) {
    strcpy(text, "%(version)s");
    *length = (int)strlen(text);
    return 0;
}
"""
FAKE_PROGRAM = "int MPI_Init(int*, char***); int main(void) { return MPI_Init(0, 0); }\n"


def library() -> Path:
    return harness.build_dir() / "lib" / "awaken" / "libawaken.so"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} (binutils) is not installed")
    return found


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=harness.HANG_S).stdout


@pytest.mark.skipif(harness.sanitizer() != "", reason="a sanitizer's run-time library is needed")
def test_needs_nothing_but_libc() -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of(tool("readelf"), "-d", library()))
    assert needed, "no dynamic section"
    assert all(re.match(r"libc\.so|ld-linux", name) for name in needed), needed


def test_exports_only_what_programs_call() -> None:
    names = re.findall(r" [A-Z] (\S+)$", output_of(tool("nm"), "-D", "--defined-only", library()), re.M)
    assert {"MPI_Send", "PMPI_Send", "MPI_Send_c", "MPIX_Query_cuda_support", "awaken_version"} <= set(names)
    assert [name for name in names if not re.match(r"P?MPI_|MPIX_|awaken_|dlopen$", name)] == []


def test_no_template_is_shared_between_abis() -> None:
    """MPI_Status has one name and a size per ABI: std::vector<MPI_Status> of two cores would be merged."""
    symbols = output_of(tool("nm"), "-C", library()).splitlines()
    assert any("awaken::mpich::" in symbol for symbol in symbols), "the library is stripped: this test sees nothing"
    assert [symbol for symbol in symbols if re.search(r"\bstd::\w+<[^()<>]*\bMPI_Status\b", symbol)] == []


def start_program(tmp_path: Path, awaken: Path, version: str, extra: str, **environment: str) -> tuple[int, str]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    (tmp_path / "mpi.c").write_text(FAKE_MPI % {"version": version, "extra": extra})
    (tmp_path / "program.c").write_text(FAKE_PROGRAM)
    mpi, program = tmp_path / "libmpi.so.99", tmp_path / "program"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libmpi.so.99", tmp_path / "mpi.c", "-o", mpi],
        check=True,
        timeout=harness.HANG_S,
    )
    subprocess.run(
        [compiler, tmp_path / "program.c", mpi, f"-Wl,-rpath,{tmp_path}", "-o", program],
        check=True,
        timeout=harness.HANG_S,
    )
    run = subprocess.run(
        [awaken, "exec", "--", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    ("version", "extra", "words"),
    [
        ("Acme MPI 3.0", "acme", ["Acme MPI 3.0", "no ABI that Awaken knows", "AWAKEN_MPI"]),
        ("Open MPI v2.1.0", "ompi_mpi_comm_world", ["Open MPI v2.1.0", "Open MPI from 3 on"]),
    ],
)
def test_an_unknown_mpi_is_named(
    tmp_path: Path, awaken_program: Path, version: str, extra: str, words: list[str]
) -> None:
    status, errors = start_program(tmp_path, awaken_program, version, extra)
    assert status == 2 and all(word in errors for word in words), errors


ABI_PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int MPI_Get_library_version(char*, int*);
int main(void) {
    char text[16384];
    int length, (*absent)(void);
    MPI_Get_library_version(text, &length);
    absent = (int (*)(void))dlsym(RTLD_DEFAULT, "MPI_Isend");
    printf("%s: %d\n", text, absent());
    return 0;
}
"""
MPI5_UNSUPPORTED_OPERATION = 55  # MPI_ERR_UNSUPPORTED_OPERATION; 52 in Open MPI, 44 in MPICH


def compile_shared(source: str, library: Path, *arguments: str | Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    file = library.with_suffix(".c")
    file.write_text(source)
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-Wl,-soname,{library.name}", file, *arguments, "-o", library],
        check=True,
        timeout=harness.HANG_S,
    )


def test_open_mpi_with_the_abi_of_mpi5(tmp_path: Path, awaken_program: Path) -> None:
    """Open MPI 6 has two libraries over a common one, which has the symbols by which older releases are known."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    common, mpi, program = tmp_path / "libopen_mpi.so.99", tmp_path / "libmpi_abi.so.99", tmp_path / "program"
    compile_shared("int ompi_mpi_comm_world;\n", common)
    uses_common = "extern int ompi_mpi_comm_world; int* used = &ompi_mpi_comm_world;\n"
    forward = "int MPI_Get_library_version(char* t, int* l) { return PMPI_Get_library_version(t, l); }\n"
    fake = FAKE_MPI % {"version": "Open MPI v6.0.0", "extra": "unused"} + uses_common + forward
    compile_shared(fake, mpi, common, f"-Wl,-rpath,{tmp_path}")
    (tmp_path / "program.c").write_text(ABI_PROGRAM)
    subprocess.run(
        [compiler, tmp_path / "program.c", mpi, f"-Wl,-rpath,{tmp_path}", "-o", program],
        check=True,
        timeout=harness.HANG_S,
    )
    run = subprocess.run(
        [awaken_program, "exec", "--", program], capture_output=True, text=True, timeout=harness.HANG_S
    )
    assert run.stdout == f"Open MPI v6.0.0: {MPI5_UNSUPPORTED_OPERATION}\n", (run.returncode, run.stdout, run.stderr)


def test_an_mpi_that_calls_itself_too_early(tmp_path: Path, awaken_program: Path) -> None:
    """Its version is asked for while nothing can be called yet: an error, where it waited for itself forever."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    mpi, program = tmp_path / "libmpi.so.99", tmp_path / "program"
    fake = "int MPI_Initialized(int* flag) { return *flag = 0; }" + FAKE_MPI % {"version": "MPICH 9", "extra": "acme"}
    calls = "{\n    int flag = 0;\n    MPI_Initialized(&flag);\n    strcpy(text"
    compile_shared(fake.replace("{\n    strcpy(text", calls), mpi)
    (tmp_path / "program.c").write_text(FAKE_PROGRAM)
    subprocess.run(
        [compiler, tmp_path / "program.c", mpi, f"-Wl,-rpath,{tmp_path}", "-o", program],
        check=True,
        timeout=harness.HANG_S,
    )
    run = subprocess.run(
        [awaken_program, "exec", "--", program], capture_output=True, text=True, timeout=harness.HANG_S
    )
    assert run.returncode == 2 and "was being looked for" in run.stderr, (run.returncode, run.stderr)


def test_switched_off_any_mpi_will_do(tmp_path: Path, awaken_program: Path) -> None:
    assert start_program(tmp_path, awaken_program, "Acme MPI 3.0", "acme", AWAKEN="0") == (0, "")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"AWAKEN_GPU": "cud"}, ["AWAKEN_GPU", "cud", "auto"]),
        ({"AWAKEN_REPROT": "1"}, ["AWAKEN_REPROT", "AWAKEN_REPORT"]),
        ({"AWAKEN_PINNED_POOL": "64X"}, ["AWAKEN_PINNED_POOL", "64X"]),
    ],
)
def test_wrong_settings_stop_a_preloaded_program(
    environment: dict[str, str], words: list[str], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Preloaded by hand, without `awaken exec` looking first."""
    mpi = mpi_named("mpich")
    run = subprocess.run(
        [mpi.programs / "host_probe"],
        env={**os.environ, **environment, "LD_PRELOAD": str(library())},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
    )
    assert run.returncode == 2 and run.stderr.startswith("awaken: "), (run.returncode, run.stderr)
    assert all(word in run.stderr for word in words), run.stderr


def run_python(
    awaken_program: Path, mpi: harness.Mpi, script: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`mpi` is MPICH's library in the script, and loaded by load(mpi); program is what a linked program has."""
    start = f"""
import ctypes, subprocess, sys
mpi, load, program = {str(mpi.mpiexec.parent.parent / "lib" / "libmpi.so.12")!r}, ctypes.CDLL, ctypes.CDLL(None)
"""
    return subprocess.run(
        [awaken_program, "exec", *options, "--", sys.executable, "-c", start + script],
        env={**harness.clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )


needs_no_run_time_library = pytest.mark.skipif(
    harness.sanitizer() != "", reason="the interpreter would need the sanitizer's run-time library"
)


@needs_no_run_time_library
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sys.exit(3)", "it loaded no MPI library"),
        ("load(mpi); sys.exit(3)", "it called no MPI function, though it loaded "),
        ("load(mpi); program.MPI_Initialized(ctypes.byref(ctypes.c_int())); sys.exit(3)", "called neither MPI_Init"),
        ("load(mpi); program.MPI_Init(None, None); sys.exit(3)", "it ended without MPI_Finalize"),
    ],
)
def test_a_report_that_does_not_come_is_missed(
    script: str, words: str, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    mpi = mpi_named("mpich")
    run = run_python(awaken_program, mpi, script, "--report")
    assert (run.returncode, run.stdout) == (3, "")
    assert re.fullmatch(rf"awaken: no report of \S+: .*{words}.*\n", run.stderr), run.stderr
    assert run_python(awaken_program, mpi, script).stderr == ""


@needs_no_run_time_library
def test_only_a_report_that_does_not_come_is_missed(
    awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Neither of the program itself, nor of another that it starts."""
    script = """
load(mpi)
program.MPI_Init(None, None)
subprocess.run([sys.executable, "-c", "pass"], check=True)
program.MPI_Finalize()
"""
    errors = run_python(awaken_program, mpi_named("mpich"), script, "--report").stderr
    assert errors.startswith("Awaken report") and "no report" not in errors, errors


@needs_no_run_time_library
def test_an_mpi_that_the_program_did_not_name_is_told(
    awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    mpi = mpi_named("mpich")
    named = str(mpi.mpiexec.parent.parent / "lib" / "libmpi.so.12")
    script = "program.MPI_Init(None, None); program.MPI_Finalize()"
    chosen = "the program had loaded none: AWAKEN_MPI names another"
    errors = run_python(awaken_program, mpi, script, "--report", AWAKEN_MPI=named).stderr
    assert chosen in errors and "launcher" not in errors, errors
    assert chosen not in run_python(awaken_program, mpi, "load(mpi);" + script, "--report", AWAKEN_MPI=named).stderr
    # Where the program has loaded its own, a setting that names another one comes too late, which is said.
    passed_over = "had no effect: the program brought its own MPI"
    for named_otherwise in (named, "libmpi.so.12"):
        errors = run_python(awaken_program, mpi, "load(mpi);" + script, "--report", AWAKEN_MPI=named_otherwise).stderr
        assert passed_over not in errors, errors
    another = str(harness.awaken().parent.parent / "lib" / "awaken" / "libawaken.so")
    errors = run_python(awaken_program, mpi, "load(mpi);" + script, "--report", AWAKEN_MPI=another).stderr
    assert f"AWAKEN_MPI={another} {passed_over}" in errors, errors
    for rank, times in (("0", 1), ("1", 0)):
        launched = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2"}
        errors = run_python(awaken_program, mpi, script, AWAKEN_MPI=named, **launched).stderr
        assert errors.count("is not that of the launcher (Open MPI)") == times, errors


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_a_gpu_that_is_asked_for_must_be_there(
    kind: str, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    if Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists():
        pytest.skip("this machine has a GPU driver")
    mpi = mpi_named("mpich")
    run = subprocess.run(
        [awaken_program, "exec", "--gpu", kind, "--", mpi.programs / "host_probe"],
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
    )
    assert run.returncode != 0
    assert re.search(r"awaken: .*(libcuda|libamdhip64).*: .*AWAKEN_GPU", run.stderr), run.stderr


@pytest.mark.parametrize("emulate", ["cuda:1", "hip5:1", "hip:1"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "mpi5"])
def test_buffer_check_and_public_interface(
    mpi: str, emulate: str, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    chosen = mpi_named(mpi)
    result = harness.run_ranks(
        chosen,
        1,
        [chosen.programs / "buffer_check"],
        emulate=emulate,
        environment={"AWAKEN_CHECK": "1"},
        timeout=harness.HANG_S,
    )
    result.check()
    assert result.output.count("\nok ") >= 9, result.explain()


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
def test_without_pinned_memory_ordinary_memory_serves(
    emulate: str, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    report = tmp_path / "report.json"
    result = harness.run_ranks(
        mpi_named("mpich"),
        2,
        [harness.build_dir() / "apps" / "mpich" / "ping_pong_gpu_aware", "--max-bytes", "1M"],
        emulate=emulate,
        environment={"AWAKEN_TEST_FAULTS": "pinned-oom", "AWAKEN_PATH": "staged", "AWAKEN_REPORT": str(report)},
        timeout=harness.HANG_S,
    )
    result.check()
    assert "used ordinary host memory" in report.read_text()


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_failing_copy_is_an_mpi_error(
    mpi: str, emulate: str, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """The program's error handler hears of it: no crash, no hang, no silent wrong data."""
    # The first copy of each process is the program's own, the second is the layer's.
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [harness.build_dir() / "apps" / mpi / "point_to_point"],
        emulate=emulate,
        environment={"AWAKEN_TEST_FAULTS": "copy-error=2"},
        timeout=harness.HANG_S,
    )
    assert result.status != 0, result.explain()
    assert not re.search(r"signal 11|Segmentation", result.output), result.explain()
    # Whichever call of the runtime hears of it first.
    assert re.search(r"awaken: (copying|waiting for earlier work on) ", result.output), result.explain()
