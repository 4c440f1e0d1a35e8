# SPDX-License-Identifier: Apache-2.0
"""The native program `awaken`: what it makes of its arguments, the environment and the program that it is to start.

The program is tried in a prefix of its own, with a small library in the place of Awaken's, so that these tests need no
MPI and show what `awaken exec` alone does. The library writes a word to stderr when it is really loaded.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import child_jobs
import harness
import pytest

LIBRARY = """
#include <unistd.h>
const char *awaken_version(void) { return "test"; }
__attribute__((constructor)) static void loaded(void) { if (write(2, "<preloaded>", 11) != 11) _exit(99); }
"""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Prefix:
    """An installation with a stand-in library."""

    path: Path

    @property
    def program(self) -> Path:
        return self.path / "bin" / "awaken"

    @property
    def library(self) -> Path:
        return self.path / "lib" / "awaken" / "libawaken.so"

    @property
    def emulator(self) -> Path:
        return self.path / "lib" / "awaken" / "emulator"

    @property
    def package(self) -> Path:
        return self.path / "lib" / "awaken" / "python"

    def add_package(self) -> None:
        """As `make install` does; without it the package is that of the interpreter, as after `pip install`."""
        self.package.symlink_to(harness.ROOT / "python")

    def run(self, *arguments: str | Path, cwd: Path | None = None, **variables: str) -> Result:
        """Runs `awaken` in an environment without AWAKEN_ and LD_ variables but for those given."""
        return self.run_with(variables, *arguments, cwd=cwd)

    def run_with(self, variables: dict[str, str], *arguments: str | Path, cwd: Path | None = None) -> Result:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWAKEN", "LD_"))}
        done = subprocess.run(
            [str(self.program), *map(str, arguments)],
            env={**environment, **variables},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)


def compile_c(source: str, output: Path, *flags: str) -> Path:
    file = output.with_name(output.name + ".c")
    file.write_text(source)
    command = [os.environ.get("CC", "cc"), str(file), "-o", str(output), *flags]
    subprocess.run(command, check=True, timeout=harness.HANG_S)
    return output


def make_prefix(path: Path, library: Path) -> Prefix:
    prefix = Prefix(path)
    (path / "bin").mkdir(parents=True)
    prefix.emulator.mkdir(parents=True)
    shutil.copy2(harness.awaken(), prefix.program)
    shutil.copy2(library, prefix.library)
    return prefix


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(LIBRARY, tmp_path_factory.mktemp("library") / "libawaken.so", "-shared", "-fPIC")


@pytest.fixture
def prefix(tmp_path: Path, stand_in: Path) -> Prefix:
    return make_prefix(tmp_path / "prefix", stand_in)


def is_one_line(text: str) -> bool:
    return text.startswith("awaken: ") and text.count("\n") == 1 and text.endswith("\n")


def assert_refused(result: Result, status: int, *words: str) -> None:
    """One line on stderr, with the given words in it, and nothing on stdout."""
    assert (result.status, result.out) == (status, "")
    assert is_one_line(result.err), result.err
    for word in words:
        assert word in result.err


# --------------------------------------------------------------------------------------------- starting the program


def test_the_library_is_loaded_and_the_programs_output_and_status_are_its_own(prefix: Prefix) -> None:
    result = prefix.run("exec", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.status, result.out) == (7, "out\n")
    assert result.err == "<preloaded>err\n"


def test_the_separator_may_be_left_out_and_the_programs_options_are_its_own(prefix: Prefix) -> None:
    result = prefix.run("exec", "printf", "%s|", "--check", "--", "-h")
    assert (result.status, result.out) == (0, "--check|--|-h|")


def test_words_after_the_separator_are_not_options(prefix: Prefix) -> None:
    assert_refused(prefix.run("exec", "--", "--check"), 127, "--check")


def test_the_program_sees_the_name_that_the_user_wrote(prefix: Prefix) -> None:
    assert prefix.run("exec", "sh", "-c", "cat /proc/$$/cmdline | tr '\\0' '|'; :").out.startswith("sh|-c|")


def test_it_replaces_itself(prefix: Prefix) -> None:
    """Launchers signal the process that they started, so the program must be that process."""
    command = [str(prefix.program), "exec", "sh", "-c", "echo $$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        out, _ = process.communicate(timeout=harness.HANG_S)
    assert int(out) == process.pid


def test_scripts_run(prefix: Prefix, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env sh\necho from a script\n")
    script.chmod(0o755)
    assert prefix.run("exec", script).out == "from a script\n"
    without_first_line = tmp_path / "plain"
    without_first_line.write_text("echo from a plain text\n")
    without_first_line.chmod(0o755)
    assert prefix.run("exec", without_first_line).out == "from a plain text\n"


def test_the_current_folder_in_path_is_searched(prefix: Prefix, tmp_path: Path) -> None:
    script = tmp_path / "here"
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o755)
    assert prefix.run("exec", "here", cwd=tmp_path, PATH=f"/nowhere::{os.environ['PATH']}").out == "found\n"


# ----------------------------------------------------------------------------------------------------- environment


def preload_of(result: Result) -> list[str]:
    assert result.status == 0, result.err
    return result.out.strip().split(":")


UCP = 'const char *ucp_name(void) {{ return "{}"; }}'
FAKE_MPI = "const char *ucp_name(void); const char *MPI_Name(void) { return ucp_name(); }"
FAKE_PROGRAM = "#include <stdio.h>\nconst char *MPI_Name(void); int main(void) { puts(MPI_Name()); return 0; }"


def ucx(folder: Path, name: str, module: str = "") -> Path:
    """A UCX that tells its name; `module` is what its folder of modules holds."""
    folder.mkdir(parents=True)
    compile_c(UCP.format(name), folder / "libucp.so.0", "-shared", "-fPIC", "-Wl,-soname,libucp.so.0")
    if module:
        (folder / "ucx").mkdir()
        (folder / "ucx" / module).touch()
    return folder


def program_with_ucx(folder: Path, own: Path, *flags: str) -> Path:
    """A program whose MPI was linked with this UCX, and finds it by its RUNPATH or with other flags."""
    where = [f"-Wl,-rpath,{own}", *(flags or ["-Wl,--enable-new-dtags"])]
    library = folder / "libmpi.so.12"
    compile_c(FAKE_MPI, library, "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", str(own / "libucp.so.0"), *where)
    own_folder = f"-Wl,-rpath,{folder}"
    return compile_c(FAKE_PROGRAM, folder / "program", str(library), own_folder, "-Wl,--allow-shlib-undefined")


@pytest.mark.parametrize("below", ["", "lib", "lib64"])
def test_another_ucx_takes_the_place_of_the_mpis(prefix: Prefix, tmp_path: Path, below: str) -> None:
    program = program_with_ucx(tmp_path, ucx(tmp_path / "own", "own"))
    ucx(tmp_path / "it's another" / below, "other", "libuct_cuda.so.0")
    assert prefix.run("exec", program).out == "own\n"
    by_option = prefix.run("exec", "--ucx", tmp_path / "it's another", "--", program)
    by_variable = prefix.run_with({"AWAKEN_UCX": str(tmp_path / "it's another")}, "exec", program)
    for result in (by_option, by_variable):
        assert (result.status, result.out) == (0, "other\n"), result


@pytest.mark.parametrize("case", ["no folder", "no GPUs", "no UCX in the MPI", "RPATH"])
def test_a_ucx_that_would_not_be_used_is_refused(prefix: Prefix, tmp_path: Path, case: str) -> None:
    flags = ["-Wl,--disable-new-dtags"] if case == "RPATH" else []
    program = program_with_ucx(tmp_path, ucx(tmp_path / "own", "own"), *flags)
    other = ucx(tmp_path / "other", "other", "" if case == "no GPUs" else "libuct_rocm.so.0")
    words: list[str | Path] = ["exec", "--ucx", tmp_path if case == "no folder" else other]
    if case == "no UCX in the MPI":
        library = compile_c("int MPI_Init;", tmp_path / "libmpi.so.40", "-shared", "-fPIC")
        words += ["--mpi", library]
    told = {
        "no folder": "there is no libucp.so.0",
        "no GPUs": "knows no GPUs",
        "no UCX in the MPI": "does not use UCX",
        "RPATH": "names the folder (RPATH)",
    }
    assert_refused(prefix.run(*words, "--", program), 2, told[case])


def test_other_preloads_stay_after_ours(prefix: Prefix, tmp_path: Path) -> None:
    others = [compile_c("int other;", tmp_path / f"other{i}.so", "-shared", "-fPIC") for i in range(2)]
    shown = prefix.run("exec", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=f"{others[0]} {others[1]}")
    assert preload_of(shown) == [str(prefix.library), str(others[0]), str(others[1])]


def test_the_library_is_never_preloaded_twice(prefix: Prefix, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(prefix.library)
    other = compile_c("int other;", tmp_path / "other.so", "-shared", "-fPIC")
    for present in (prefix.library, link):
        shown = prefix.run("exec", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=f"{other}:{present}")
        assert preload_of(shown) == [str(prefix.library), str(other)]
    nested = prefix.run("exec", prefix.path / "bin" / "awaken", "exec", "sh", "-c", "echo $LD_PRELOAD")
    assert preload_of(nested) == [str(prefix.library)]


OVERFLOW = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static int counter;
static void *count(void *unused) { ++counter; return unused; }
int main(int argument_count, char **arguments) {
    volatile char *memory = malloc(10);
    puts(getenv("LD_PRELOAD"));
    fflush(stdout);
    if (argument_count > 1) {
        pthread_t thread;
        memory[9 + argument_count - 1] = 1;
        pthread_create(&thread, NULL, count, NULL);
        ++counter;
        pthread_join(thread, NULL);
    }
    free((void *)memory);
    return 0;
}
"""


def sanitized(tmp_path: Path, *flags: str) -> Path:
    try:
        return compile_c(OVERFLOW, tmp_path / "sanitized", "-pthread", *flags)
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no library for {' '.join(flags)}")


@pytest.mark.parametrize("preloaded", [False, True], ids=["linked", "preloaded"])
@pytest.mark.parametrize(
    ("flags", "named", "finds"),
    [
        (("-fsanitize=address",), "libasan.so", "heap-buffer-overflow"),
        (("-fsanitize=address,undefined",), "libasan.so", "heap-buffer-overflow"),
        (("-fsanitize=thread",), "libtsan.so", "data race"),
        (("-fsanitize=address", "-static-libasan"), "", "heap-buffer-overflow"),
        (("-fsanitize=undefined",), "", ""),
    ],
)
def test_a_sanitizer_comes_before_the_library(
    prefix: Prefix, tmp_path: Path, flags: tuple[str, ...], named: str, finds: str, preloaded: bool
) -> None:
    program = sanitized(tmp_path, *flags)
    environment = {}
    if preloaded:
        # As the sanitizer's own message advises. A second copy of one that is linked statically is no use.
        if not named:
            pytest.skip("nothing to preload")
        compiler = os.environ.get("CC", "cc")
        found = subprocess.run([compiler, f"-print-file-name={named}"], capture_output=True, text=True, check=True)
        environment["LD_PRELOAD"] = str(Path(found.stdout.strip()).resolve())
    right = prefix.run_with(environment, "exec", program)
    assert right.err.endswith("<preloaded>"), right.err
    first, *others = preload_of(right)
    if named:
        assert Path(first).name.startswith(named) and others == [str(prefix.library)]
    else:
        assert [first, *others] == [str(prefix.library)]
    if finds:
        assert finds in prefix.run_with(environment, "exec", program, "wrong").err


TOOL = """
int PMPI_Initialized(int *), PMPI_Send(void);
extern int ompi_mpi_comm_world;
int (*call)(void) = PMPI_Send;
int *handle = &ompi_mpi_comm_world;
__attribute__((constructor)) static void begin(void) { int flag = 0; PMPI_Initialized(&flag); }
"""
MPI_PROGRAM = """
#include <stdio.h>
int ompi_mpi_comm_world;
int PMPI_Initialized(int *flag) { return *flag = 0; }
int PMPI_Send(void) { return 0; }
int main(void) { return puts("ran") < 0; }
"""


def test_a_tool_that_is_not_linked_with_its_mpi(prefix: Prefix, tmp_path: Path) -> None:
    """The dynamic loader loads it into `awaken`, too, which has no MPI."""
    tool = compile_c(TOOL, tmp_path / "tool.so", "-shared", "-fPIC", "-Wl,-z,now")
    program = compile_c(MPI_PROGRAM, tmp_path / "program", "-rdynamic")
    result = prefix.run("exec", program, LD_PRELOAD=str(tool))
    assert (result.status, result.out) == (0, "ran\n"), result.err
    assert prefix.run("version", LD_PRELOAD=str(tool)).status == 0


@pytest.mark.parametrize(
    ("options", "variable", "value"),
    [
        (["--report"], "AWAKEN_REPORT", "1"),
        (["--report=out.json"], "AWAKEN_REPORT", "out.json"),
        (["--check"], "AWAKEN_CHECK", "1"),
        (["--trace", "run 1"], "AWAKEN_TRACE", "run 1"),
        (["--trace=run"], "AWAKEN_TRACE", "run"),
        (["--gpu", "none"], "AWAKEN_GPU", "none"),
        (["--gpu=none"], "AWAKEN_GPU", "none"),
        (["--emulate", "cuda:4"], "AWAKEN_EMULATE", "cuda:4"),
        (["--pinned-pool", "16M"], "AWAKEN_PINNED_POOL", "16M"),
        (["--gpu", "hip", "--gpu", "none"], "AWAKEN_GPU", "none"),
    ],
)
def test_options_set_their_variable(prefix: Prefix, options: list[str], variable: str, value: str) -> None:
    result = prefix.run("exec", *options, "sh", "-c", f'echo "${variable}"', AWAKEN_GPU="auto")
    assert (result.status, result.out) == (0, value + "\n"), result.err


@pytest.mark.parametrize("by_option", [True, False])
def test_the_emulator_comes_first(prefix: Prefix, by_option: bool) -> None:
    options = ["--emulate", "cuda:2"] if by_option else []
    variables = {} if by_option else {"AWAKEN_EMULATE": "cuda:2"}
    show = ["sh", "-c", "echo $LD_LIBRARY_PATH"]
    assert prefix.run_with(variables, "exec", *options, *show).out == f"{prefix.emulator}\n"
    shown = prefix.run_with({"LD_LIBRARY_PATH": "/a:/b", **variables}, "exec", *options, *show)
    assert shown.out == f"{prefix.emulator}:/a:/b\n"


def test_without_the_emulator_the_search_path_is_left_alone(prefix: Prefix) -> None:
    show = ["sh", "-c", 'echo "${LD_LIBRARY_PATH-unset}"']
    assert prefix.run("exec", *show).out == "unset\n"
    assert prefix.run("exec", *show, LD_LIBRARY_PATH="/a").out == "/a\n"


def test_switched_off_the_program_runs_without_the_library(prefix: Prefix) -> None:
    result = prefix.run("exec", "sh", "-c", 'echo "${LD_PRELOAD-unset}"', AWAKEN="off")
    assert (result.status, result.out, result.err) == (0, "unset\n", "")


# -------------------------------------------------------------------------------------------- what cannot be started


def test_wrong_options_are_refused(prefix: Prefix) -> None:
    assert_refused(prefix.run("exec", "--nonsense", "true"), 2, "--nonsense", "awaken exec --help")
    assert_refused(prefix.run("exec", "--check=1", "true"), 2, "--check", "no argument")
    assert_refused(prefix.run("exec", "--gpu"), 2, "--gpu", "KIND")
    assert_refused(prefix.run("exec", "--report=", "true"), 2, "--report", "FILE")
    assert_refused(prefix.run("exec"), 2, "no program")
    assert_refused(prefix.run("exec", "--check", "--"), 2, "no program")
    assert_refused(prefix.run("--nonsense"), 2, "--nonsense")
    assert_refused(prefix.run(), 2, "no command")
    assert_refused(prefix.run("version", "surplus"), 2, "surplus")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWAKEN_GPU", "cud"),
        ("AWAKEN_PINNED_POOL", "much"),
        ("AWAKEN_CHEKC", "1"),
        ("AWAKEN_EMULATE", "voodoo:2"),
        ("AWAKEN_MPI", "/nonexistent/libmpi.so"),
        ("AWAKEN_MPI", "/usr/"),
        ("AWAKEN_COLLECTIVES", "allreduce : fast"),
        ("AWAKEN_COLLECTIVES", "barrier : staged"),
    ],
)
def test_wrong_settings_are_refused_before_the_program_starts(prefix: Prefix, variable: str, value: str) -> None:
    assert_refused(prefix.run_with({variable: value}, "exec", "echo", "started"), 2, variable)


def test_an_mpi_library_may_be_named_as_the_dynamic_loader_finds_it(prefix: Prefix) -> None:
    assert prefix.run_with({"AWAKEN_MPI": "libmpi.so.12"}, "exec", "echo", "started").out == "started\n"


def test_switched_off_no_report_is_expected(prefix: Prefix) -> None:
    result = prefix.run_with({"AWAKEN": "0"}, "exec", "--report", "echo", "started")
    assert (result.status, result.out) == (0, "started\n")
    assert is_one_line(result.err) and "no report will come" in result.err


def test_a_missing_program_is_127(prefix: Prefix, tmp_path: Path) -> None:
    assert_refused(prefix.run("exec", "no-such-program"), 127, "no-such-program", "PATH")
    assert_refused(prefix.run("exec", "./no-such-program"), 127, "./no-such-program")
    (tmp_path / "here").write_text("")
    assert_refused(prefix.run("exec", "here", cwd=tmp_path), 127, "write ./here")


def test_a_report_file_without_the_equals_sign_is_told(prefix: Prefix, tmp_path: Path) -> None:
    result = prefix.run("exec", "--report", "paths.json", "/bin/true", cwd=tmp_path)
    assert_refused(result, 127, "there is no program paths.json", "write --report=paths.json")
    (tmp_path / "paths.json").touch()
    assert_refused(prefix.run("exec", "--report", "./paths.json", cwd=tmp_path), 126, "write --report=./paths.json")
    for words in (["--report", "--", "paths.json"], ["--report", "--check", "paths.json"]):
        assert "--report=" not in prefix.run("exec", *words, cwd=tmp_path).err
    assert prefix.run("exec", "--report", "/bin/true", cwd=tmp_path).status == 0


def test_a_file_that_may_not_be_executed_is_126(prefix: Prefix, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("#!/bin/sh\n")
    assert_refused(prefix.run("exec", file), 126, str(file), "chmod +x")
    assert_refused(prefix.run("exec", "file", PATH=str(tmp_path)), 126, str(file), "chmod +x")
    assert_refused(prefix.run("exec", tmp_path), 126, "folder")


def test_a_script_with_a_missing_interpreter_is_126(prefix: Prefix, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter -x\n")
    script.chmod(0o755)
    assert_refused(prefix.run("exec", script), 126, "/no/such/interpreter", str(script))


@pytest.mark.parametrize("flags", [["-static"], ["-static-pie"]])
def test_a_static_program_is_refused(prefix: Prefix, tmp_path: Path, flags: list[str]) -> None:
    program = compile_c("int main(void) { return 0; }", tmp_path / "static", *flags)
    assert_refused(prefix.run("exec", program), 126, str(program), "statically linked", "-lawaken")
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    assert_refused(prefix.run("exec", script), 126, "interpreter", str(script))


def patched_copy(program: Path, path: Path, offset: int, value: bytes) -> Path:
    content = bytearray(program.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def test_programs_of_other_machines_are_refused(prefix: Prefix, tmp_path: Path) -> None:
    own = compile_c("int main(void) { return 0; }", tmp_path / "own")
    class_offset, machine_offset = 4, 18  # ELF header: EI_CLASS, e_machine
    narrow = patched_copy(own, tmp_path / "narrow", class_offset, b"\x01")
    assert_refused(prefix.run("exec", narrow), 126, str(narrow), "32-bit")
    foreign = patched_copy(own, tmp_path / "foreign", machine_offset, b"\x15\x00")  # POWER
    assert_refused(prefix.run("exec", foreign), 126, str(foreign), "another kind of machine")
    assert prefix.run("exec", own).status == 0


def setuid_program(folder: Path) -> Path | None:
    """A dynamic program that is setuid to somebody else than us: as root one of our own, else the system's su."""
    if os.geteuid() != 0:
        su = shutil.which("su", path="/bin:/usr/bin")
        return Path(su) if su and Path(su).stat().st_mode & stat.S_ISUID else None
    program = compile_c("int main(void) { return 0; }", folder / "setuid")
    nobody = 65534
    os.chown(program, nobody, nobody)
    program.chmod(0o4755)
    return program


def test_a_setuid_program_is_refused(prefix: Prefix, tmp_path: Path) -> None:
    program = setuid_program(tmp_path)
    if program is None:
        pytest.skip("this machine has no setuid program su")
    assert_refused(prefix.run("exec", program), 126, str(program), "setuid", "-lawaken")


# -------------------------------------------------------------------------------------------------- the installation


def test_a_missing_library_says_what_to_do(prefix: Prefix) -> None:
    prefix.library.unlink()
    assert_refused(prefix.run("exec", "true"), 2, str(prefix.library), "install Awaken again")


def test_another_library_can_be_named(prefix: Prefix, tmp_path: Path, stand_in: Path) -> None:
    prefix.library.unlink()
    own = tmp_path / "own.so"
    shutil.copy2(stand_in, own)
    assert prefix.run("exec", "true", AWAKEN_LIBRARY=str(own)).err == "<preloaded>"
    shown = prefix.run("exec", "sh", "-c", "echo $LD_PRELOAD", AWAKEN_LIBRARY="own.so", cwd=tmp_path)
    assert preload_of(shown) == [str(own)]


def test_a_wrong_library_is_refused(prefix: Prefix, tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert_refused(prefix.run("exec", "true", AWAKEN_LIBRARY=str(text)), 2, str(text), "AWAKEN_LIBRARY")
    other = compile_c("int other;", tmp_path / "other.so", "-shared", "-fPIC")
    assert_refused(prefix.run("exec", "true", AWAKEN_LIBRARY=str(other)), 2, str(other), "not Awaken's library")
    missing = tmp_path / "missing.so"
    assert_refused(prefix.run("exec", "true", AWAKEN_LIBRARY=str(missing)), 2, str(missing), "AWAKEN_LIBRARY")


@pytest.mark.parametrize("folder", ["with space", "with:colon"])
def test_a_path_that_cannot_be_preloaded_is_refused(tmp_path: Path, stand_in: Path, folder: str) -> None:
    prefix = make_prefix(tmp_path / folder, stand_in)
    assert_refused(prefix.run("exec", "true"), 2, str(prefix.library), "LD_PRELOAD")


def test_a_missing_emulator_says_what_to_do(prefix: Prefix) -> None:
    prefix.emulator.rmdir()
    assert_refused(prefix.run("exec", "--emulate", "cuda:1", "true"), 2, str(prefix.emulator), "AWAKEN_BUILD_EMULATOR")


# ------------------------------------------------------------------------------------------------- the other commands


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version_names_the_library(prefix: Prefix, arguments: Sequence[str]) -> None:
    result = prefix.run(*arguments)
    assert result.status == 0
    assert result.out.startswith("awaken ")
    assert str(prefix.library) in result.out


@pytest.mark.parametrize("arguments", [["settings"], ["exec", "--settings"]])
def test_settings_lists_each_variable_with_its_value(prefix: Prefix, arguments: Sequence[str]) -> None:
    result = prefix.run(*arguments, AWAKEN_GPU="none")
    assert result.status == 0
    assert "AWAKEN_GPU = " in result.out
    assert "set to:  none" in result.out


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [("AWAKEN_GPUU", "cuda", "AWAKEN_GPU?"), ("AWAKEN_GPU", "amd", "auto, cuda"), ("AWAKEN_TUNE", "rings=4", "rings")],
)
def test_settings_names_what_is_wrong_after_the_list(prefix: Prefix, variable: str, value: str, word: str) -> None:
    result = prefix.run_with({variable: value}, "settings")
    assert result.status == 2
    assert "strided_pull_bytes = " in result.out
    assert is_one_line(result.err) and variable in result.err and word in result.err


def test_every_option_is_in_the_help_and_every_variable_of_an_option_is_a_setting(prefix: Prefix) -> None:
    text = prefix.run("exec", "--help").out
    settings = prefix.run("settings").out
    variables = re.findall(r"^  --.*\[(AWAKEN_\w+)\]$", text, re.MULTILINE)
    assert "AWAKEN_REPORT" in variables
    for variable in variables:
        assert f"{variable} = " in settings


def test_help_names_the_commands(prefix: Prefix) -> None:
    for arguments in (["help"], ["--help"], ["-h"]):
        result = prefix.run(*arguments)
        assert result.status == 0
        assert all(command in result.out for command in ("exec", "bench", "settings", "version"))


def test_help_of_one_command(prefix: Prefix) -> None:
    assert prefix.run("help", "exec").out == prefix.run("exec", "--help").out
    for arguments in (["help", "settings"], ["settings", "--help"], ["version", "-h"]):
        result = prefix.run(*arguments)
        assert result.status == 0
        assert re.fullmatch(r"awaken \w+: .*\.\n\n  --json  .*\n", result.out), result.out
    assert_refused(prefix.run("help", "exec", "bench"), 2, "one command")
    assert_refused(prefix.run("version", "1"), 2, "no arguments but --json")
    python = prefix.path / "bin" / "python3"
    python.write_text('#!/bin/sh\necho "own:$*"\n')
    python.chmod(0o755)
    assert re.fullmatch(r"own:-I -c .* topo --help\n", prefix.run("help", "topo").out, re.DOTALL)


def test_other_commands_go_to_the_prefixs_own_python(prefix: Prefix) -> None:
    python = prefix.path / "bin" / "python3"
    python.write_text('#!/bin/sh\necho "own:$*"\n')
    python.chmod(0o755)
    assert re.fullmatch(r"own:-I -c .* demo --list\n", prefix.run("demo", "--list").out, re.DOTALL)
    prefix.add_package()
    assert prefix.run("demo", "--list").out == f"own:-I {prefix.package}/awaken/start.py demo --list\n"


def test_bench_without_the_benchmarks_says_how_to_get_them(prefix: Prefix) -> None:
    result = prefix.run("bench", "--list")
    assert result.status == 2
    assert "this installation has no benchmarks" in result.err and "AWAKEN_BUILD_BENCH=ON" in result.err


def test_an_unknown_command_is_refused_by_the_python_package(prefix: Prefix) -> None:
    result = prefix.run("nonsense", PYTHONPATH=str(harness.ROOT / "python"))
    assert_refused(result, 2, "nonsense", "exec")
    result = prefix.run("docter", PYTHONPATH=str(harness.ROOT / "python"))
    assert_refused(result, 2, "docter", "did you mean doctor?")
    result = prefix.run("osu_latency", PYTHONPATH=str(harness.ROOT / "python"))
    assert_refused(result, 2, "awaken bench osu_latency")


# ------------------------------------------------------------------------------------- modules of the current folder

MODULES = {
    *("argparse", "contextlib", "dataclasses", "encodings", "importlib", "io", "json", "os", "pathlib", "re", "runpy"),
    *("shutil", "site", "sitecustomize", "subprocess", "sys", "usercustomize", "awaken"),
    *getattr(sys, "stdlib_module_names", ()),  # from Python 3.10 on
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with results, and beside them a module in the place of each that a command may import."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in sorted(MODULES):
        text = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + ' ')\nraise SystemExit(66)\n"
        (folder / f"{name}.py").write_text(text)
        (folder / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (folder / name / file).write_text(text)
    # What PYTHONUSERBASE=. makes the folder of packages that the user has installed.
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "hostile.pth").write_text(f"import os; open({str(tmp_path / 'executed')!r}, 'a').write('pth ')\n")
    osu = "# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n8   1.00\n16   2.00\n"
    (folder / "old.log").write_text(osu)
    (folder / "new.log").write_text(osu)
    names = {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "rank 0"}}
    call = {"name": "MPI_Send", "cat": "call", "ph": "X", "ts": 1, "dur": 2, "pid": 0, "tid": 0}
    (folder / "timeline.json").write_text(json.dumps({"traceEvents": [names, call]}))
    return folder


@pytest.mark.parametrize(
    ("has_package", "elements"),
    [(True, None), (True, "{package}:.:x/.."), (False, "{package}:"), (False, ":.:{package}")],
)
def test_no_module_of_the_current_folder_is_executed(
    prefix: Prefix, hostile: Path, has_package: bool, elements: str | None
) -> None:
    """The folder of somebody's results may hold a json.py."""
    package = str(harness.ROOT / "python")
    if has_package:
        prefix.add_package()
    variables = {"PYTHONUSERBASE": "."}
    if elements is not None:
        variables["PYTHONPATH"] = elements.format(package=package)
    for words, status, told in (
        (["report", "old.log", "-o", "page.md"], 0, "report written: page.md"),
        (["report", "timeline.json", "-o", "page.html"], 0, "report written: page.html"),
        (["compare", "old.log", "new.log"], 0, "2 same"),
        (["trace", "no-trace"], 2, "no-trace"),
        (["topo", "--help"], 0, "usage: awaken topo"),
        (["doctor", "--help"], 0, "usage: awaken doctor"),
        (["scale", "--help"], 0, "usage: awaken scale"),
        (["help", "scale"], 0, "usage: awaken scale"),
        (["nonsense"], 2, "there is no command nonsense"),
    ):
        done = prefix.run_with(variables, *words, cwd=hostile)
        executed = hostile.parent / "executed"
        assert not executed.exists(), (words, executed.read_text())
        assert done.status == status and told in done.out + done.err, (words, done)


def run_by_hand(
    folder: Path, *words: str, elements: str = "{package}", module: str = "awaken", options: Sequence[str] = ("-m",)
) -> subprocess.CompletedProcess[str]:
    """`python -m awaken`, with this PYTHONPATH."""
    return subprocess.run(
        [sys.executable, "-B", *options, module, *words],
        cwd=folder,
        env={"PYTHONPATH": elements.format(package=harness.ROOT / "python"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )


@pytest.fixture
def imported_before(tmp_path: Path) -> set[str]:
    """The modules that Python has imported before it comes to the package of -m."""
    probe = tmp_path / "first" / "probe"
    probe.mkdir(parents=True)
    (probe / "__init__.py").write_text("import sys; print(*sys.modules); raise SystemExit")
    done = run_by_hand(probe.parent, module="probe")
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("elements", ["{package}", "{package}:", "here:.::{package}:x/.."])
@pytest.mark.parametrize("words", [["report", "old.log", "-o", "page.md"], ["compare", "old.log", "new.log"]])
def test_python_m_awaken_executes_no_module_of_the_current_folder(
    hostile: Path, imported_before: set[str], words: list[str], elements: str
) -> None:
    # Python executes these for every program of such a PYTHONPATH.
    for name in imported_before | {"awaken", "sitecustomize", "usercustomize"}:
        for path in (hostile / f"{name}.py", hostile / name / "__init__.py"):
            path.unlink(missing_ok=True)
    assert (hostile / "json.py").exists() and (hostile / "shutil.py").exists(), "what is tried is there"
    # As Python 3.9, which does not tell its own command line.
    customize = hostile.parent / "python39" / "sitecustomize.py"
    customize.parent.mkdir()
    customize.write_text("import sys; del sys.orig_argv")
    for more in ("", f"{customize.parent}:"):
        done = run_by_hand(hostile, *words, elements=more + elements)
        executed = hostile.parent / "executed"
        assert not executed.exists(), executed.read_text()
        assert done.returncode == 0, done.stderr


def test_the_package_may_be_in_the_current_folder(tmp_path: Path) -> None:
    for module, options in (("awaken", ("-m",)), ("-mawaken", ()), ("awaken.__main__", ("-m",))):
        done = run_by_hand(harness.ROOT / "python", "compare", "--help", elements="", module=module, options=options)
        assert done.returncode == 0 and "usage: awaken compare" in done.stdout, done.stderr
    # Of another package's -m, the folder stays what it is.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__main__.py").write_text("")
    (tmp_path / "mine" / "__init__.py").write_text("import awaken, beside")
    (tmp_path / "beside.py").write_text("print('found')")
    assert run_by_hand(tmp_path, "awaken", module="mine").stdout == "found\n"


def test_programs_of_a_command_get_the_users_environment(prefix: Prefix, tmp_path: Path) -> None:
    prefix.add_package()
    script = 'echo "Time in seconds: 1"; echo "$PYTHONPATH" >> seen'
    words = ["--ranks", "1", "--repeat", "1", "--launcher", "", "--", "sh", "-c", script]
    done = prefix.run("scale", *words, cwd=tmp_path, PYTHONPATH=":mine:.")
    assert done.status == 0, done.err
    assert (tmp_path / "seen").read_text() == ":mine:.\n"


def test_a_missing_package_is_told(prefix: Prefix, tmp_path: Path) -> None:
    python = prefix.path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # whatever it has in its site-packages
    python.chmod(0o755)
    result = prefix.run("topo", PYTHONPATH="/nonexistent", PYTHONUSERBASE=str(tmp_path))
    assert_refused(result, 126, "needs the Python package awaken", "pip install")


def run_as_old_python(argument_zero: str, path: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.version_info = (3, 6, 8, 'final', 0); sys.argv = [{argument_zero!r}, 'topo', 'x']; "
    return subprocess.run(
        [sys.executable, "-c", code + "import awaken"],
        env={"PYTHONPATH": str(harness.ROOT / "python"), "PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )


def test_an_old_python_is_told_or_replaced(tmp_path: Path) -> None:
    """A cluster's python3 is often that of its operating system."""
    package = harness.ROOT / "python" / "awaken"
    done = run_as_old_python("-m", tmp_path)
    assert (done.returncode, done.stdout) == (126, "")
    assert is_one_line(done.stderr) and "Python 3.9 or newer" in done.stderr and "3.6.8" in done.stderr
    for minor in (8, 9, 11):
        newer = tmp_path / f"python3.{minor}"
        newer.write_text(f'#!/bin/sh\necho "{minor}:$*"\n')
        newer.chmod(0o755)
    for argument_zero in ("-m", "awaken"):  # python3 -m awaken, start.py
        assert run_as_old_python(argument_zero, tmp_path).stdout == f"11:-I {package}/start.py topo x\n"
    assert run_as_old_python("program.py", tmp_path).returncode == 126, "a program that imports it is not replaced"
    # What an old one must be able to read before it can say so.
    for file in ("__init__.py", "start.py"):
        text = (package / file).read_text()
        ast.parse(text, feature_version=(3, 7))
        assert "from __future__" not in text, "3.6 does not know annotations"


@pytest.mark.parametrize(
    ("emulate", "names"),
    [
        ("cuda:1", ("cuda", "cudart", "nvrtc", "cublas", "nccl", "nvidia-ml")),
        ("hip:1", ("amdhip64", "hiprtc", "hipblas", "rccl", "rocm_smi64", "hsa-runtime64")),
    ],
)
def test_emulated_libraries_are_found_by_their_plain_names(emulate: str, names: Sequence[str], tmp_path: Path) -> None:
    """As programs open them that leave the version to the system: the emulated ones come first."""
    folder = harness.build_dir() / "lib" / "awaken" / "emulator"
    if not folder.is_dir():
        pytest.skip("this build has no emulated GPU driver")
    script = (
        "import ctypes, sys\nfor name in sys.argv[1:]:\n    ctypes.CDLL(name)\nprint(open('/proc/self/maps').read())\n"
    )
    files = [f"lib{name}.so" for name in names]
    result = child_jobs.awaken(
        ["exec", "--emulate", emulate, "--", sys.executable, "-c", script, *files],
        child_jobs.environment(None, tmp_path),
    )
    assert result.status == 0, result
    for file in files:
        assert f"{folder}/{file}." in result.out, file
