"""`awaken tune` on emulated GPUs, and what becomes of tuning files and variables before a program starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import harness
import pytest

MODEL = "Awaken emulated GPU (CUDA)"
MEASURED = ("small_watch_us", "ring_chunk_bytes", "network_fragment_bytes", "kernel_copy_bytes")


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """One line on stderr, with the given words in it, and nothing on stdout."""
        assert (self.status, self.out) == (2, ""), self
        assert self.err.startswith("awaken: ") and self.err.count("\n") == 1, self.err
        for word in words:
            assert word in self.err


def awaken(*words: str | Path, program: Path | None = None, **variables: str) -> Result:
    """Runs `awaken` in an environment without AWAKEN_ variables and without a home, but for those given."""
    foreign = ("AWAKEN", "LD_", "XDG_", "HOME", "CUDA_", "HIP_", "ROCR_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [str(program or harness.awaken()), *map(str, words)],
        env={**environment, **harness.sanitizer_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=harness.patient(harness.HANG_S),
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def emulator() -> None:
    if not (harness.build_dir() / "lib" / "awaken" / "emulator").is_dir():
        pytest.skip("this build has no emulated GPU driver")


def tune(*words: str | Path, emulate: str = "cuda:2", program: Path | None = None, **variables: str) -> Result:
    return awaken("tune", "--quick", *words, program=program, AWAKEN_EMULATE=emulate, **variables)


def assignments(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) = (\S+)$", text, re.MULTILINE))


# ------------------------------------------------------------------------------------------------------- measuring


@pytest.mark.sanitizer
@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
def test_it_measures_and_says_what_and_why(emulate: str, tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "tuning.conf"
    result = tune("-o", file, emulate=emulate)
    assert result.status == 0, result
    assert "An emulated GPU" in result.out
    # Those of a ring, and those of a window between nodes.
    assert result.out.count("# Chunks through pinned memory, 4 under way") == 2
    for words in ("A copy of 8 bytes", "within GPU 0", "from GPU 1 to GPU 0"):
        assert words in result.out, words
    text = file.read_text()
    assert list(assignments(text)) == list(MEASURED)
    lines = text.splitlines()
    for name in MEASURED:
        at = next(i for i, line in enumerate(lines) if line.startswith(name))
        assert re.match(r"#: .* times$", lines[at - 1]), lines[at - 1]
        assert f"\n{lines[at]} (built in: " in result.out
    assert result.out.endswith(f"# Written to {file}\n")
    # The file is one that programs read.
    assert awaken("exec", "true", AWAKEN_TUNING=str(file)).status == 0
    # Nothing unfinished stays beside it.
    assert list(file.parent.iterdir()) == [file]


def test_one_gpu_is_enough(tmp_path: Path) -> None:
    result = tune("-o", tmp_path / "tuning.conf", emulate="cuda:1")
    assert result.status == 0, result
    assert "Copies between GPUs were not measured: one GPU is visible" in result.out
    assert "within a GPU" in (tmp_path / "tuning.conf").read_text()


def test_gpus_that_do_not_reach_each_other(tmp_path: Path) -> None:
    result = tune("-o", tmp_path / "tuning.conf", AWAKEN_TEST_FAULTS="no-peer")
    assert result.status == 0, result
    assert "were not measured: GPU 0 cannot reach the memory of GPU 1" in result.out


def test_without_a_compiler_for_kernels_copies_are_not_compared(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "awaken"
    program.parent.mkdir()
    shutil.copy2(harness.awaken(), program)
    drivers = tmp_path / "lib" / "awaken" / "emulator"
    without = shutil.ignore_patterns("libnvrtc*")
    shutil.copytree(harness.build_dir() / "lib" / "awaken" / "emulator", drivers, symlinks=True, ignore=without)
    file = tmp_path / "tuning.conf"
    result = tune("-o", file, program=program)
    assert result.status == 0, result
    if "from GPU 1 to GPU 0, started" in result.out:
        pytest.skip("this machine has a compiler for kernels of its own")
    assert re.search(r"# Copies from GPU 1 to GPU 0 were not compared: \S", result.out), result.out
    assert "kernel_copy_bytes" not in file.read_text()


def test_the_option_stands_for_the_variable(tmp_path: Path) -> None:
    result = awaken("tune", "--quick", "--emulate=hip:1", "--output", tmp_path / "tuning.conf")
    assert result.status == 0, result
    assert "(HIP" in (tmp_path / "tuning.conf").read_text()


def test_of_an_emulated_gpu_nothing_is_written_unless_a_file_is_named(tmp_path: Path) -> None:
    result = tune(HOME=str(tmp_path))
    assert result.status == 0, result
    assert "# Nothing is written" in result.out
    assert not (tmp_path / ".config").exists()


def test_a_dry_run_prints_the_file(tmp_path: Path) -> None:
    result = tune("--dry-run", HOME=str(tmp_path))
    assert result.status == 0, result
    file = tmp_path / ".config" / "awaken" / "tuning.conf"
    printed = result.out.split(f"# {file} would be\n")[1]
    assert printed.startswith(f"[{MODEL}]\n")
    assert list(assignments(printed)) == list(MEASURED)
    assert not (tmp_path / ".config").exists()


# ------------------------------------------------------------------------------------------------ a file that exists


def test_what_people_wrote_stays(tmp_path: Path) -> None:
    file = tmp_path / "tuning.conf"
    mine = (
        "# my own file\n"
        "rings = 2\n"
        "\n"
        "[NVIDIA H200]\n"
        "#: measured on another machine\n"
        "ring_chunk_bytes = 512K\n"
        f"[{MODEL}]\n"
        "# chosen by hand\n"
        "ring_chunks = 6\n"
        "#: of an earlier run\n"
        "ring_chunk_bytes = 8K   # replaced\n"
        "#: of a run whose figure is no more\n"
        "rings = 3\n"
    )
    file.write_text(mine)
    assert tune("-o", file).status == 0
    once = file.read_text()
    for line in mine.splitlines():
        assert (line in once) == (line not in {"#: of an earlier run", "ring_chunk_bytes = 8K   # replaced"}), line
    assert once.count("[") == once.count("]")
    assert once.count(f"[{MODEL}]") == 1
    assert tune("-o", file).status == 0
    # A second run adds nothing: the same lines but for figures and their reasons.
    twice = file.read_text()
    assert len(twice.splitlines()) == len(once.splitlines())
    assert awaken("exec", "true", AWAKEN_TUNING=str(file)).status == 0


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, target = tmp_path / "tuning.conf", tmp_path / "kept" / "elsewhere.conf"
    link.symlink_to(target)
    for _ in range(2):  # the first makes what the link leads to
        assert tune("-o", link).status == 0
        assert link.is_symlink() and set(assignments(target.read_text())) == set(MEASURED)
    assert sorted(path.name for path in target.parent.iterdir()) == [target.name]


def test_a_file_that_is_wrong_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "tuning.conf"
    file.write_text("rings = 4\nrigns = 5\n")
    tune("-o", file).refused(f"{file}:2: there is no figure rigns", "did you mean rings?")
    assert file.read_text() == "rings = 4\nrigns = 5\n"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    tune("-o", tmp_path).refused(str(tmp_path), "it is a folder", "-o FILE")
    (tmp_path / "file").write_text("")
    # Before anything is measured: nothing is on stdout.
    tune("-o", tmp_path / "file" / "tuning.conf").refused("cannot be written (", "-o FILE")
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    tune("-o", device).refused(f"{device} cannot be written (it is no ordinary file)")
    assert device.is_char_device()
    assert tune("--dry-run", AWAKEN_TUNING="/dev/null").status == 0
    awaken("tune", "--emulate", "cuda:1").refused("neither HOME nor XDG_CONFIG_HOME is set", "-o FILE")


# ------------------------------------------------------------------------------------------------------- wrong use


def test_wrong_use_is_refused() -> None:
    awaken("tune", "--nonsense").refused("--nonsense", "awaken tune --help")
    awaken("tune", "surplus").refused("surplus")
    awaken("tune", "--quick=1").refused("--quick=1")
    for option in ("-o", "--output", "--output=", "--emulate"):
        awaken("tune", option).refused("without its argument")
    awaken("tune", "-o", "/tmp/x", AWAKEN_GPU="none").refused("there is no GPU to measure", "--emulate")
    tune("-o", "/tmp/x", CUDA_VISIBLE_DEVICES="-1").refused("there is no GPU to measure")
    tune("-o", "/tmp/x", emulate="voodoo:2").refused("AWAKEN_EMULATE")


def test_a_driver_that_fails_is_named(tmp_path: Path) -> None:
    for fault in ("oom", "pinned-oom", "copy-error=1"):
        result = tune("-o", tmp_path / "tuning.conf", AWAKEN_TEST_FAULTS=fault)
        assert result.status == 2, (fault, result)
        assert re.fullmatch(r"awaken: \S.* failed \(.+\): .*\n", result.err), result.err
    assert list(tmp_path.iterdir()) == []


def test_help_and_lists() -> None:
    assert "--dry-run" in awaken("tune", "--help").out
    assert "  tune " in awaken("help").out
    listed = awaken("settings", AWAKEN_TUNE="ring_chunks=5, rings=3").out
    assert re.search(r"^rings = number\n    .*\n    default: \d+\n    set to:  3$", listed, re.MULTILINE)
    assert "small_watch_us = microseconds" in listed


def test_switches_for_tests_are_shown_where_they_are_set() -> None:
    assert "AWAKEN_TEST" not in awaken("settings").out
    assert "\nAWAKEN_TEST_NODES = 2\n" in awaken("settings", AWAKEN_TEST_NODES="2").out


# ------------------------------------------------------------------------------- before a program starts, and documents


def test_wrong_figures_are_refused_before_the_program_starts(tmp_path: Path) -> None:
    start = ("exec", "echo", "started")
    awaken(*start, AWAKEN_TUNE="rings=0").refused("AWAKEN_TUNE: rings=0 is out of bounds")
    awaken(*start, AWAKEN_TUNE="rinsg=4").refused("AWAKEN_TUNE: there is no figure rinsg", "did you mean rings?")
    awaken(*start, AWAKEN_TUNE_RINGS="4").refused("AWAKEN_TUNE_RINGS", 'use AWAKEN_TUNE="rings=..."')
    awaken(*start, AWAKEN_PRETEND_NODES="2").refused("AWAKEN_PRETEND_NODES", "use AWAKEN_TEST_NODES")
    absent = str(tmp_path / "absent.conf")
    awaken(*start, AWAKEN_TUNING=absent).refused(absent, "cannot be read", "awaken tune")
    own = tmp_path / "awaken" / "tuning.conf"
    own.parent.mkdir()
    own.write_text("[NVIDIA H200]\nring_chunk_bytes = 1\n")
    awaken(*start, XDG_CONFIG_HOME=str(tmp_path)).refused(f"{own}:2: ring_chunk_bytes=1 is out of bounds")
    # Switched off, the layer reads none of it; another file can be named instead.
    assert awaken(*start, XDG_CONFIG_HOME=str(tmp_path), AWAKEN="0").out == "started\n"
    assert awaken(*start, XDG_CONFIG_HOME=str(tmp_path), AWAKEN_TUNING="/dev/null").out == "started\n"


def test_every_setting_and_figure_is_documented() -> None:
    text = awaken("settings").out
    listed = dict(re.findall(r"^(\w+) = .*\n    .*\n(?:    default: (.*)\n)?", text, re.MULTILINE))
    documents = harness.ROOT / "docs"
    settings = (documents / "settings.md").read_text()
    tuning = (documents / "tuning.md").read_text()
    for name, default in listed.items():
        if not name.startswith("AWAKEN"):
            assert re.search(rf"^\| `{name}` \| {re.escape(default)} \|", tuning, re.MULTILINE), name
        else:
            row = re.search(rf"^\| `{name}` \|.*?\| (?P<values>.*?) \| (?P<default>.*?) ?\|", settings, re.MULTILINE)
            assert row is not None, name
            if name != "AWAKEN_LIBRARY":  # whose default is a place
                assert row["default"].replace("`", "") == default, name
            words = re.search(rf"^{name} = (.* \| .*)$", text, re.MULTILINE)
            if words is not None:
                assert set(words[1].split(" | ")) == set(row["values"].replace("`", "").split(", ")), name
    assert "| `AWAKEN_TEST" not in settings
    documented = re.findall(r"^\| `(\w+)` \|", tuning, re.MULTILINE)
    assert set(documented) == {name for name in listed if not name.startswith("AWAKEN")}
