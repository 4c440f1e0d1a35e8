# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that the documentation shows, and compares what they print with what the pages say.

A page is one shell session from top to bottom, in a copy of the tree's layout. What counts as a command:

    ```console     a line that begins with "$ "; the lines below it are its output
    ```sh          every line but comments and blank ones
    four blanks    a line whose first word is one of TOOLS

A line that ends with a backslash goes on in the next. The output is what the command printed, whatever its numbers,
blanks, folders and host are, and the order of its lines, which may come from several ranks; where it has a line `...`,
it is a part of that. A command must succeed. A comment before a block changes that:

    <!-- fails -->               each command of the block must fail
    <!-- needs: gfortran -->     the block runs where these programs are in PATH
    <!-- set up -->              the block runs in a fresh clone only: `make test` has done it
    <!-- not run: REASON -->     the block does not run

README.md finds in .venv/bin what `make demo` puts there, and no GPU. Pages of the tutorial begin with the commands of
its README. On other pages programs find four emulated GPUs, `./app` is a program that sends device memory, and commands
that NOT_RUN names do not run. Of those, the options of `awaken` and the targets of `make` must at least exist.

With --long, README.md and the tutorial also run in a fresh clone, from `make demo` on.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import harness
import pytest

ROOT = harness.ROOT
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial"
TUTORIAL_PAGES = sorted(TUTORIAL.glob("[0-9]-*.md"))
OTHER_PAGES = [
    page
    for page in (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
    # How it is built; what was measured where.
    if page.name not in ("architecture.md", "performance.md", "performance-values.md", "protocol.md")
]
TOOLS = ("awaken", "mpiexec", "make", "cmake", "pip", "mpicc", "srun", "osu_")
COMMAND_LIMIT_S = 120.0
PROSE_WORDS = 500

NOT_RUN = (
    (r"\b(make|cmake|xargs|pip install)\b", "sets up, builds or installs, as make test itself and test_install.py do"),
    (r"\b(srun|salloc|sbatch)\b", "needs Slurm"),
    (r"\bnode-a\b", "needs other nodes; tests/ssh runs it"),
    (r"/opt/|rocm", "needs ROCm, or an installation in /opt"),
    (r"<prefix>|\[--|\bapp\.c\b", "is a pattern with words to put in"),
    (r"\.(json|log) \S*\.?(json|log)|=\S+\.log|allreduce\.log", "reads files that the reader has"),
    (r"--matrix|awaken report\b|awaken scale", "takes minutes; tests/cli and tests/report run it in small"),
    (r"^build/debug/", "needs a build for debugging"),
    (r"^awaken topo( --json| --emulate|$| +#)", "measures for long without a GPU; tests/cli runs it in small"),
    (r"awaken doctor +#", "takes seconds; the tutorial runs it"),
    (r"awaken bench|osu_latency D D", "measures for long without a GPU; tests/bench runs it in small"),
    (r"20000|200000|\./allreduce( +#|$)", "has the size of a real GPU"),
    (r"\./ping_pong_(cpu|staged|gpu_aware)( +#|$)", "sends 1 GiB 55 times; the tutorial runs it in small"),
)


@dataclass
class Command:
    page: Path
    line: int
    text: str
    output: list[str] = field(default_factory=list)
    fails: bool = False
    needs: tuple[str, ...] = ()
    set_up: bool = False
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: $ {self.text}"


def commands_of(page: Path, text: str) -> list[Command]:
    """The commands of a page in their order, those that are not run too."""
    found: list[Command] = []
    fence, pending = "", False  # fence: "" outside of a block
    marks: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence, pending = ("" if fence else line.strip()[3:] or "text"), False
            if not fence:
                marks = {}
            continue
        mark = re.fullmatch(r"<!-- (fails|needs|set up|not run)(?:: (.*))? -->", line)
        if mark and not fence:
            marks[mark[1]] = mark[2] or ""
            continue
        bare = line[4:] if not fence and line.startswith("    ") and line[4:].startswith(TOOLS) else None
        if fence == "console" and line.startswith("$ "):
            bare = line[2:]
        elif fence == "sh":
            bare = line
        if pending:
            found[-1].text += "\n" + line.strip()
        elif bare is not None and bare.strip() and not bare.startswith("#"):
            needs = tuple(marks.get("needs", "").split())
            found.append(
                Command(
                    page, number, bare.strip(), [], "fails" in marks, needs, "set up" in marks, marks.get("not run", "")
                )
            )
        elif fence == "console" and found:
            found[-1].output.append(line)
        pending = bool(found) and line.endswith("\\") and (pending or bare is not None)
    return found


def reason_not_to_run(command: Command) -> str:
    """Empty when the command is to be run here."""
    missing = [program for program in command.needs if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed"
    if command.set_up:
        return "make test has done it"
    if command.not_run or command.page == README or TUTORIAL in command.page.parents:
        return command.not_run
    return next((reason for pattern, reason in NOT_RUN if re.search(pattern, command.text)), "")


def plain(line: str) -> str:
    """The line without what may differ from run to run: numbers with their units, folders, the machine's name (pages
    say `host`), the width of columns."""
    line = re.sub(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w-])", "host", line)
    line = re.sub(r"(?<![\w.])(?:\.\.\.)?(?:/[\w.+-]+)+/", ".../", line)
    line = re.sub(r"(?<!\w)[-+]?\d[\d.]*(?:e[-+]?\d+)?(?: ?(?:ns|us|ms|s|B|KiB|MiB|GiB))?\b", "#", line)
    line = re.sub(r"(?<=\s)0x[0-9a-f]+|[0-9a-f]{16}", "#", line)
    return " ".join(line.split())


def differences(expected: Sequence[str], printed: str) -> list[str]:
    """Of what a page shows (no lines: it tells nothing of the output) to what was printed."""
    lines = Counter(filter(None, map(plain, printed.splitlines())))
    shown = Counter(plain(line) for line in expected if line.strip() not in ("", "..."))
    found = [f"it does not print: {line}" for line in (shown - lines).elements()]
    if shown and "..." not in expected:
        found += [f"it prints, too: {line}" for line in (lines - shown).elements()]
    return found


def linked_tree(root: Path) -> None:
    """The tree's layout, with .venv/bin as `make demo` leaves it."""
    (root / "build").mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in (".venv", "build", ".git"):
            (root / entry.name).symlink_to(entry)
    (root / "build" / "release").symlink_to(harness.build_dir())
    programs = root / ".venv" / "bin"
    programs.mkdir(parents=True)
    for entry in (ROOT / ".venv").iterdir():
        if entry.name != "bin":
            (root / ".venv" / entry.name).symlink_to(entry)
    for entry in (*(ROOT / ".venv" / "bin").iterdir(), *(harness.build_dir() / "bin").glob("osu_*"), harness.awaken()):
        (programs / entry.name).unlink(missing_ok=True)
        (programs / entry.name).symlink_to(entry)


def fresh_clone(root: Path) -> None:
    """What is under version control or could be, and nothing that was set up or built."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, timeout=harness.HANG_S, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not where it is deleted and not yet committed
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)


class Session:
    """A shell whose folder and exported variables last from command to command, in a tree of its own."""

    def __init__(
        self, folder: Path, fill: Callable[[Path], None] = linked_tree, limit_s: float = COMMAND_LIMIT_S
    ) -> None:
        self.root, self.state, self.limit_s = folder / "awaken", folder / "state", limit_s
        fill(self.root)
        self.state.mkdir()
        (folder / "home").mkdir()
        (self.state / "folder").write_text(str(self.root))
        self.home = folder / "home"

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        # Ranks may be root's and more than cores, which Open MPI must be told.
        return {**harness.clean_environment(), **harness.OPENMPI_ENVIRONMENT, "HOME": str(self.home),
                "XDG_CACHE_HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home), **more}  # fmt: skip

    def run(self, command: Command, variables: Mapping[str, str]) -> str:
        """What is wrong with the command; empty when nothing is."""
        script = self.state / "script"
        variables_file = self.state / "variables"
        script.write_text(
            f'[ ! -f "{variables_file}" ] || . "{variables_file}"\n'
            f'cd "$(cat "{self.state}/folder")"\n'
            f"{command.text}\n"
            "status=$?\n"
            # What a run gets anew must not come from the run before.
            f'export -p | grep -v -e " TMPDIR=" -e " {harness.MARK}=" >"{variables_file}"\n'
            f'pwd >"{self.state}/folder"\n'
            "exit $status\n"
        )
        # An MPI whose rank is killed, as on the way of a command that fails and of the doctor, leaves its files behind.
        files = harness.FILES_OF_MPIS
        result = harness.run(["bash", str(script)], self.environment(variables), self.limit_s, foreign_files=files)
        for file in result.left:
            if file.name.startswith(files):
                file.unlink(missing_ok=True)
        problems = list(result.problems)
        if (result.status != 0) != command.fails:
            problems.append(
                f"exit status {result.status}, where the command {'fails' if command.fails else 'succeeds'}"
            )
        problems += differences(command.output, result.output)
        if not problems:
            return ""
        return "\n".join([str(command), *problems, "--- what it printed ---", result.output[-4000:]])


def unknown_words(command: Command, path: str) -> list[str]:
    """Options of `awaken` and targets of `make` in a command that do not exist."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", command.text)
    found = re.search(r"\bawaken (doctor|topo|report|compare|trace|scale|bench)\b(.*?)(?: -- |$)", text, re.DOTALL)
    if found:
        shown = subprocess.run(
            [harness.awaken(), found[1], "--help"],
            env={**harness.clean_environment(), "PATH": path},
            capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=True,
        ).stdout  # fmt: skip
        return [option for option in re.findall(r"--[a-z][a-z-]+", found[2]) if option not in shown]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make ([a-z][a-z-]*)(?=\s|$)", text)
    return [target for target in targets if not re.search(rf"^{target}\b.*:", makefile, re.MULTILINE)]


def run_page(commands: Sequence[Command], folder: Path, variables: Mapping[str, str]) -> None:
    session = Session(folder)
    (session.root / "app").symlink_to(harness.build_dir() / "apps" / "mpich" / "point_to_point")
    for command in commands:
        reason = reason_not_to_run(command)
        if reason:
            sys.stdout.write(f"not run, {reason}: {command}\n")
            unknown = unknown_words(command, variables["PATH"])
            assert not unknown, f"{command}\nThere is no {', '.join(unknown)}."
        else:
            problem = session.run(command, variables)
            assert not problem, problem


@pytest.fixture
def mpi(awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> harness.Mpi:
    """The MPI of the pages."""
    found = mpi_named("mpich")
    if not (harness.build_dir() / "apps" / "mpich").is_dir():
        pytest.skip("the programs under apps/ were not built for MPICH")
    return found


def name(page: Path) -> str:
    return page.stem


def path_of_the_system() -> str:
    """PATH without what was set up in the tree."""
    return ":".join(one for one in os.environ["PATH"].split(":") if not one.startswith(str(ROOT)))


def test_commands_of_the_readme(mpi: harness.Mpi, tmp_path: Path) -> None:
    run_page(commands_of(README, README.read_text()), tmp_path, {"PATH": path_of_the_system()})


@pytest.mark.long
def test_fresh_clone(tmp_path: Path) -> None:
    """README.md and the tutorial as somebody types them who has the sources and nothing else."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the tree is no clone")
    session = Session(tmp_path, fresh_clone, harness.LONG_HANG_S)
    for page in (README, TUTORIAL / "README.md", *TUTORIAL_PAGES):
        (session.state / "folder").write_text(str(session.root))
        for command in commands_of(page, page.read_text()):
            if command.not_run or any(shutil.which(program) is None for program in command.needs):
                continue
            problem = session.run(command, {"PATH": path_of_the_system()} if page == README else {})
            assert not problem, problem


@pytest.mark.parametrize("page", TUTORIAL_PAGES, ids=name)
def test_commands_of_the_tutorial(page: Path, mpi: harness.Mpi, tmp_path: Path) -> None:
    setup = TUTORIAL / "README.md"
    commands = commands_of(setup, setup.read_text()) + commands_of(page, page.read_text())
    run_page(commands, tmp_path, {"PATH": f"{mpi.mpiexec.parent}:{os.environ['PATH']}"})


@pytest.mark.parametrize("page", [page for page in OTHER_PAGES if commands_of(page, page.read_text())], ids=name)
def test_commands_of_other_pages(page: Path, mpi: harness.Mpi, tmp_path: Path) -> None:
    build = harness.build_dir()
    path = (build / "bin", mpi.mpiexec.parent, ROOT / "apps", os.environ["PATH"])
    variables = {
        "PATH": ":".join(map(str, path)),
        "AWAKEN_EMULATE": "cuda:4",
        "LD_LIBRARY_PATH": str(build / "lib" / "awaken" / "emulator"),
    }
    run_page(commands_of(page, page.read_text()), tmp_path, variables)


THEIR_PROGRAMS = ("app", "configure", "pt2pt", "GhostExchange")
"""Of readers, and of the documents that docs/seeds.md compares with."""


def test_what_the_page_on_other_documents_names_exists(mpi: harness.Mpi) -> None:
    """Commands between backquotes: subcommands, benchmarks, programs with their options, settings."""
    build, page = harness.build_dir(), ROOT / "docs" / "seeds.md"
    path = f"{build / 'bin'}:{mpi.mpiexec.parent}:{os.environ['PATH']}"
    environment = {**harness.clean_environment(), "PATH": path}

    @lru_cache
    def printed(*words: str) -> str:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=True
        )
        return done.stdout

    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    commands = [span for span in re.findall(r"`([^`\n]+)`", text) if re.search(r"\bawaken |\./|\bosu_|AWAKEN_", span)]
    assert len(commands) > 60
    for span in commands:
        assert not unknown_words(Command(page, 0, span), path), span
        for command in re.findall(r"\bawaken ([a-z]+)", span):
            assert re.search(rf"^  {command} ", printed("awaken", "--help"), re.MULTILINE), span
        for test in re.findall(r"\bawaken bench ([a-z]\w+)", span):
            assert re.search(rf"\b{test}\b", printed("awaken", "bench", "--list")), span
        for test in re.findall(r"\bosu_\w+", span):
            assert (build / "bin" / test).exists(), span
        for setting in re.findall(r"\bAWAKEN_\w+", span):
            assert setting == "AWAKEN_MPI" or setting in printed("awaken", "settings"), span
        for program, words in re.findall(r"(?:^| )\./(\w+)(.*)", span):
            if program not in THEIR_PROGRAMS:
                shown = printed(str(build / "apps" / "mpich" / program), "--help")
                assert all(option in shown for option in re.findall(r"--[a-z][a-z-]+", words)), span


def prose_of(text: str) -> str:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<[^>]*>|^    .*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", TUTORIAL_PAGES, ids=name)
def test_form_of_the_tutorial(page: Path) -> None:
    """Each page is short, has an exercise with its answer folded, and can be reached from the index."""
    text = page.read_text()
    assert len(prose_of(text).split()) <= PROSE_WORDS
    assert "## Exercise" in text and "<details>" in text and "</details>" in text
    assert f"({page.name})" in (TUTORIAL / "README.md").read_text()


PAGE = """
# A page

```console
$ echo one 17 us; \\
  echo two
one 3.5 ms
...
$ true
```

<!-- fails -->
```sh
# a comment
false     # another one
```

<!-- needs: no-such-program -->
```sh
false
```

<!-- not run: needs a GPU -->
    awaken doctor
"""


def test_reading_a_page() -> None:
    found = commands_of(TUTORIAL / "x.md", PAGE)
    assert [(command.line, command.text) for command in found] == [
        (5, "echo one 17 us; \\\necho two"),
        (9, "true"),
        (15, "false     # another one"),
        (20, "false"),
        (24, "awaken doctor"),
    ]
    assert [command.output for command in found] == [["one 3.5 ms", "..."], [], [], [], []]
    assert [command.fails for command in found] == [False, False, True, False, False]
    assert [bool(reason_not_to_run(command)) for command in found] == [False, False, False, True, True]


def test_words_that_do_not_exist() -> None:
    path = os.environ["PATH"]
    unknown = [
        unknown_words(Command(TUTORIAL / "x.md", 1, text), path)
        for text in (
            "make demo  # --no", "make demolition", "awaken topo --no-mpi --to-no-avail", "awaken scale --weak -- a --x"
        )
    ]  # fmt: skip
    assert unknown == [[], ["demolition"], ["--to-no-avail"], []]


def test_lines_that_count_as_the_same() -> None:
    printed = (
        "MPI_Recv  direct  <= 4 MiB  1  3.87 ms  1.084\nABI  MPICH (/usr/lib/x/libmpi.so.12)\nPASS reduce: 4 ranks"
    )
    assert not differences(["MPI_Recv direct <= 8 KiB 7 9.1 us 0.5", "...", "ABI MPICH (.../libmpi.so.12)"], printed)
    assert differences(["MPI_Recv staged <= 4 MiB 1 3.87 ms 1.084"], printed)
    assert not differences(["the GPU host 0000:10:00.0"], f"the GPU {socket.gethostname()} 0000:12:00.0")
    wrong = ["PASS reduce: # GPUs", "PASS"]
    assert differences(["PASS reduce: 4 GPUs", "PASS", "..."], printed) == [
        f"it does not print: {one}" for one in wrong
    ]
    assert differences(["one"], "one\none") == ["it prints, too: one"]
    assert not differences(["one", "..."], "one\none") and not differences([], "one")


@pytest.mark.parametrize(
    ("text", "output", "fails", "problem"),
    [
        ("echo answer $ANSWER in $PWD", ["answer 7 in .../apps"], False, ""),
        ("echo one", ["two"], False, "it does not print: two"),
        ("false", [], False, "exit status 1, where the command succeeds"),
        ("true", [], True, "exit status 0, where the command fails"),
        ("false", [], True, ""),
    ],
)
def test_running_a_command(text: str, output: list[str], fails: bool, problem: str, tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.run(Command(TUTORIAL / "x.md", 1, "cd apps; export ANSWER=42"), {})
    found = session.run(Command(TUTORIAL / "x.md", 2, text, output, fails), {})
    assert (problem in found) if problem else not found
