# SPDX-License-Identifier: Apache-2.0
"""`awaken scale`: runs a program at several numbers of ranks, and says how well it scales, with a picture.

Strong scaling keeps the problem and adds ranks; weak scaling gives every rank the same share, by a template for the
options that say how large the problem is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import operator
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from awaken import input_files, interruption, jobs, output_files, svg
from awaken.command_line import Parser
from awaken.plain_text import LONGEST_MESSAGE, clean

USAGE_ERROR = 2
FAILED = 1
GRACE_S = 5.0
"""How long a launcher that is told to end may take to end its ranks."""
KILLED_S = 10.0
"""How long a killed launcher's children may take to die before its output is given up."""
LONGEST_TIMEOUT_S = 1_000_000

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_GHOST = r"Timing is stencil {0} boundary condition {1} ghost cell {2} total {3}"


def _ghost(field_number: int) -> str:
    return _GHOST.format(*(NUMBER if index == field_number else r"\S+" for index in range(4)))


PATTERNS: dict[str, str] = {
    "total": _ghost(3),
    "xtx": rf"^Time in seconds: {NUMBER}",
    "mpi": rf"^Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: {NUMBER}",
    "stencil": _ghost(0),
    "boundary": _ghost(1),
    "ghost": _ghost(2),
    "ccl": rf"^Time in seconds for GPU Direct MPI_Allreduce using NCCL/RCCL: {NUMBER}",
}
"""The figures of the programs under apps/: seconds, as a group of a regular expression. The first three are tried when
none is asked for."""
AUTOMATIC = ("total", "xtx", "mpi")


class ScaleError(Exception):
    """Something that the user has to put right: what, and how."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text, LONGEST_MESSAGE))  # it quotes words of the user


# ----------------------------------------------------------------------------------------------------------- templates

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": math.sqrt,
    "cbrt": lambda x: x ** (1 / 3),
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
}


class UnknownName(ValueError):
    """A name in a template that stands for nothing."""


def _evaluate(node: ast.AST, ranks: int) -> Any:
    if isinstance(node, ast.Expression):
        return _evaluate(node.body, ranks)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name) and node.id == "ranks":
        return ranks
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, ranks)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, ranks), _evaluate(node.right, ranks))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and not node.keywords
    ):
        return _FUNCTIONS[node.func.id](*(_evaluate(argument, ranks) for argument in node.args))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in _FUNCTIONS:
        raise UnknownName(node.func.id)
    raise UnknownName(node.id) if isinstance(node, ast.Name) else ValueError(ast.dump(node))


def fill(word: str, ranks: int) -> str:
    """A word of the command with each {...} replaced by what it comes to: {ranks}, {1000*ranks}, {2000*sqrt(ranks)}.

    Results are rounded to whole numbers, since that is what programs take. {{ and }} are braces.
    """

    def value(match: re.Match[str]) -> str:
        text = match.group(1)
        if text is None:
            return match.group()[0]
        try:
            result = _evaluate(ast.parse(text.strip(), mode="eval"), ranks)
            return str(round(result))
        except UnknownName as unknown:
            functions = ", ".join(_FUNCTIONS)
            raise ScaleError(
                f"{{{text}}} cannot be worked out: there is no {unknown}; what has a name is ranks, and {functions}"
            ) from None
        except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
            functions = ", ".join(_FUNCTIONS)
            raise ScaleError(
                f"{{{text}}} cannot be worked out: use numbers, ranks, + - * / // % and {functions}; {{{{ is a brace"
            ) from None

    return re.sub(r"\{\{|\}\}|\{([^{}]*)\}", value, word)


# ---------------------------------------------------------------------------------------------------------------- runs


@dataclass
class Run:
    """One run of the program. `seconds` is None where it failed; `problem` says why."""

    ranks: int
    command: list[str]
    seconds: float | None = None
    problem: str = ""


@dataclass
class Point:
    """All good runs at one number of ranks: seconds, and how they compare with the fewest ranks."""

    ranks: int
    seconds: list[float]
    speedup: float = 0.0
    efficiency: float = 0.0
    speedup_range: tuple[float, float] = (0.0, 0.0)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Study:
    """What was asked for, and what came of it so far."""

    command: list[str]
    weak: bool
    figure: str
    runs: list[Run] = field(default_factory=list)

    def points(self) -> list[Point]:
        """Speed-up and efficiency against the smallest number of ranks that has a result.

        Strong: T(base) / T(n), of which n / base would be ideal. Weak: each rank's work stays, so the time would, and
        the speed-up is that of the whole work, T(base) / T(n) * n / base.
        """
        points = []
        for ranks in sorted({run.ranks for run in self.runs}):
            seconds = [run.seconds for run in self.runs if run.ranks == ranks and run.seconds is not None]
            if seconds:
                points.append(Point(ranks, seconds))
        for point in points:
            base = points[0]
            more = point.ranks / base.ranks
            factor = more if self.weak else 1.0
            point.speedup = base.median / point.median * factor
            point.efficiency = point.speedup / more
            point.speedup_range = (
                base.median / max(point.seconds) * factor,
                base.median / min(point.seconds) * factor,
            )
        return points

    def as_json(self) -> str:
        study = {
            "schema": "awaken-scale",
            "version": 1,
            "mode": "weak" if self.weak else "strong",
            "command": self.command,
            "figure": self.figure,
            "points": [
                {
                    "ranks": point.ranks,
                    "runs": len(point.seconds),
                    "median_s": point.median,
                    "min_s": min(point.seconds),
                    "max_s": max(point.seconds),
                    "speedup": point.speedup,
                    "efficiency": point.efficiency,
                }
                for point in self.points()
            ],
            "runs": [
                {"ranks": run.ranks, "command": run.command, "seconds": run.seconds, "problem": run.problem}
                for run in self.runs
            ],
        }
        return json.dumps(study, indent=1) + "\n"


def seconds_in(output: str, patterns: Sequence[str]) -> float | None:
    """The last match of the first pattern that matches at all; None where none does."""
    for pattern in patterns:
        found = [match.group(1) for match in re.finditer(pattern, output, re.MULTILINE)]
        if found:
            try:
                seconds = float(found[-1])
            except (TypeError, ValueError):
                raise ScaleError(f"{found[-1]!r}, which the pattern {pattern!r} finds, is not a number") from None
            return seconds if math.isfinite(seconds) and seconds > 0 else None
    return None


def said(text: str) -> str:
    """What a failed run said of itself, in one line of up to 200 characters: its last words.

    Open MPI's launcher puts what it has to say into a box of dashes, under the program's own words where there are any.
    """
    box = re.search(r"^-{20,}[ \t]*\n(.*?)(?:\n[ \t]*\n|\n-{20,}|\Z)", text, re.MULTILINE | re.DOTALL)
    own = [line.strip() for line in text[: box.start() if box else None].splitlines() if re.search(r"\w", line)]
    if own:
        return own[-1][:200]
    return " ".join(box.group(1).split())[:200] if box else ""


def own_words(command: Sequence[str]) -> list[str]:
    """The program that is measured, and its arguments: without `awaken exec` and its options, which end with -- or with
    a word that is a program."""
    words = list(command)
    if Path(words[0]).name == "awaken" and words[1:2] == ["exec"]:
        after = words[2:]
        rest = after[after.index("--") + 1 :] if "--" in after else [word for word in after if shutil.which(word)]
        words = rest or words
    return words


def program_of(command: Sequence[str]) -> str:
    """The name of the program that is measured."""
    return Path(own_words(command)[0]).name


LOCAL_LAUNCHERS = ("mpiexec", "mpirun", "mpiexec.hydra", "orterun", "prterun", "srun")
"""Launchers whose ranks find a program where this process does, at least on the first node."""


def with_ranks(launcher: Sequence[str], command: Sequence[str]) -> list[str]:
    """A launcher whose words leave the number of ranks out, or name one ("mpiexec", "mpiexec -n 2"), is given each of
    the numbers in turn: all runs would be alike otherwise."""
    if not launcher or Path(launcher[0]).name not in LOCAL_LAUNCHERS:
        return list(launcher)
    if any("{" in word for word in (*launcher, *command)):
        return list(launcher)
    words, named = jobs.named_ranks(launcher)
    told = any(word in jobs.RANKS_OPTIONS for word in words)
    return [*words] if named or told else [*words, "-n", jobs.RANKS]


def check_program(word: str) -> None:
    """Raises ScaleError for what cannot be started."""
    if shutil.which(word) or ("/" not in word and os.access(word, os.X_OK)):  # some launchers look here, too
        return
    if input_files.is_folder(Path(word)):
        problem = "it is a folder"
    elif input_files.is_there(Path(word)):
        problem = f"it is not executable (chmod +x {shlex.quote(word)})"
    else:
        problem = "there is no such program" + ("" if "/" in word else " in PATH")
    raise ScaleError(f"{word} cannot be started: {problem}")


def check_command(launcher: Sequence[str], command: Sequence[str], counts: Sequence[int]) -> None:
    """Raises ScaleError for what would make every run fail: a template that means nothing, a program that there is
    not."""
    for ranks in counts:
        start, words = ([fill(word, ranks) for word in part] for part in (launcher, command))
        if start:
            check_program(start[0])
        if not start or Path(start[0]).name in LOCAL_LAUNCHERS:
            for word in dict.fromkeys((words[0], own_words(words)[0])):
                check_program(word)


def ranks_text(ranks: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def execute(command: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr. The launcher and all that it started end with this call, however it ends."""
    mark = uuid.uuid4().hex
    process: subprocess.Popen[str] | None = None
    try:
        with interruption.deferred():
            process = subprocess.Popen(
                command,
                env={**environment, jobs.MARK_VARIABLE: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        out, err = process.communicate(timeout=timeout_s)
    except BaseException:
        if process is not None:
            with process:
                jobs.end(process, mark, GRACE_S)
                # A killed process runs for an instant longer. Its end of the pipes is closed when it is over; what left
                # the group may hold them for ever.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=KILLED_S)
        raise
    return process.returncode, out, err


def run_once(run: Run, patterns: Sequence[str], timeout_s: float) -> None:
    """Fills in the run's seconds, or its problem. The programs that PATTERNS are for tell their time once."""
    try:
        status, out, err = execute(run.command, timeout_s, os.environ)
    except subprocess.TimeoutExpired:
        run.problem = f"not over after {timeout_s:g} s"
        return
    except OSError as error:
        raise ScaleError(f"{run.command[0]} cannot be started: {error.strerror}") from None
    if status != 0:
        last = said(err) or said(out)
        run.problem = f"exit status {status}" + (f": {last}" if last else "")
        return
    times = sum(
        1 for pattern in PATTERNS.values() if pattern in patterns for _ in re.finditer(pattern, out, re.MULTILINE)
    )
    if times > 1 and times == run.ranks:
        run.problem = (
            f"it ran {times} times with one rank: this launcher belongs to another MPI than the program's; "
            "name the right one with --launcher"
        )
        return
    run.seconds = seconds_in(out, patterns)
    if run.seconds is None:
        run.problem = "its output has no time in it: give --pattern a regular expression whose group is the seconds"


# -------------------------------------------------------------------------------------------------------------- picture


def _power_of_two(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def _log2_ticks(least: float, most: float) -> list[float]:
    return [2.0**power for power in range(math.floor(math.log2(least)), math.ceil(math.log2(most)) + 1)]


def draw(study: Study, title: str) -> svg.Drawing:
    """Speed-up on the left (both axes logarithmic), efficiency on the right, over the number of ranks."""
    points = study.points()
    width, height, top, bottom = 1000.0, 420.0, 60.0, 70.0
    drawing = svg.Drawing(width, height, title)
    drawing.text(width / 2, 22, title, size=14, anchor="middle", bold=True)
    ranks = [point.ranks for point in points]
    fewest, most = min(ranks), max(max(ranks), min(ranks) * 2)

    def panel(left: float, name: str) -> tuple[Callable[[float], float], float]:
        right = left + 400.0

        def x_of(count: float) -> float:
            # At the right there is room for a label.
            return left + math.log2(count / fewest) / math.log2(most / fewest) * (right - left - 50) + 10

        drawing.line(left, height - bottom, right, height - bottom)
        drawing.line(left, top, left, height - bottom)
        drawing.text((left + right) / 2, height - 34, "ranks", anchor="middle")
        drawing.text(left - 40, top - 12, name, bold=True)
        drawing.line(right - 62, top - 16, right - 36, top - 16, svg.PALETTE[-1], 1.5, "5 4")
        drawing.text(right, top - 12, "ideal", anchor="end", colour="#60656e")
        for count in sorted(set(ranks)):
            drawing.text(x_of(count), height - bottom + 16, str(count), anchor="middle")
        return x_of, right

    # Speed-up.
    x_of, right = panel(70.0, "scaled speed-up" if study.weak else "speed-up")
    reached = [value for point in points for value in (*point.speedup_range, point.speedup, point.ranks / fewest)]
    low, high = (
        2.0 ** math.floor(math.log2(min(reached))),
        2.0 ** math.ceil(math.log2(max(max(reached), min(reached) * 2))),
    )

    def y_of(speedup: float) -> float:
        return height - bottom - math.log2(speedup / low) / math.log2(high / low) * (height - bottom - top)

    for tick in _log2_ticks(low, high):
        drawing.line(70, y_of(tick), right, y_of(tick), svg.FAINT)
        drawing.text(64, y_of(tick) + 4, _power_of_two(tick), anchor="end")
    drawing.line(x_of(fewest), y_of(1), x_of(max(ranks)), y_of(max(ranks) / fewest), svg.PALETTE[-1], 1.5, "5 4")
    drawing.path([(x_of(point.ranks), y_of(point.speedup)) for point in points], svg.PALETTE[0])
    for point in points:
        x = x_of(point.ranks)
        drawing.line(x, y_of(point.speedup_range[0]), x, y_of(point.speedup_range[1]), svg.PALETTE[0], 1.5)
        spread = f"{svg.duration(min(point.seconds))} to {svg.duration(max(point.seconds))}"
        drawing.dot(
            x, y_of(point.speedup), 4, svg.PALETTE[0], f"{ranks_text(point.ranks)}: {point.speedup:.3g} ({spread})"
        )

    # Efficiency.
    x_of, right = panel(570.0, "efficiency")
    ceiling = max(1.0, *(point.speedup_range[1] / (point.ranks / fewest) for point in points)) * 1.05

    def level(efficiency: float) -> float:
        return height - bottom - efficiency / ceiling * (height - bottom - top)

    for tick in svg.ticks(0, ceiling, 5):
        drawing.line(570, level(tick), right, level(tick), svg.FAINT)
        drawing.text(564, level(tick) + 4, f"{tick * 100:.0f} %", anchor="end")
    drawing.line(x_of(fewest), level(1), right, level(1), svg.PALETTE[-1], 1.5, "5 4")
    drawing.path([(x_of(point.ranks), level(point.efficiency)) for point in points], svg.PALETTE[2])
    for point in points:
        x = x_of(point.ranks)
        more = point.ranks / fewest
        drawing.line(
            x, level(point.speedup_range[0] / more), x, level(point.speedup_range[1] / more), svg.PALETTE[2], 1.5
        )
        drawing.dot(
            x, level(point.efficiency), 4, svg.PALETTE[2], f"{ranks_text(point.ranks)}: {point.efficiency * 100:.1f} %"
        )
    for point in points:
        text = f"{point.efficiency * 100:.0f} %"
        drawing.text(x_of(point.ranks) + 8, level(point.efficiency) - 5, text, size=10, halo=True)
    runs = sorted({len(point.seconds) for point in points})
    if runs != [1]:
        number = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        caption = f"dots: medians of {number} runs; upright lines: from the slowest run to the fastest"
        drawing.text(width / 2, height - 10, caption, anchor="middle", colour="#60656e")
    return drawing


# -------------------------------------------------------------------------------------------------------------- command


def table_text(study: Study) -> str:
    rows: list[tuple[str, ...]] = [("ranks", "runs", "median (s)", "min (s)", "max (s)", "speed-up", "efficiency")]
    for point in study.points():
        seconds = (point.median, min(point.seconds), max(point.seconds))
        rows.append(
            (
                str(point.ranks),
                str(len(point.seconds)),
                *(f"{value:.6g}" for value in seconds),
                f"{point.speedup:.3f}",
                f"{point.efficiency * 100:.1f} %",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1 or len(set(counts)) != len(counts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different numbers of ranks, such as 1,2,4")
    return sorted(counts)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _regular_expression(text: str) -> str:
    try:
        pattern = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
    if pattern.groups < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has no group: put parentheses around the seconds")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="awaken scale",
        usage="awaken scale [OPTION...] -- PROGRAM [ARGUMENT...]",
        description="Runs a program at several numbers of ranks, and says how well it scales.",
        epilog="""{...} in a word of the launcher or the program is worked out for each number of
ranks: {ranks}, {1000*ranks}, {2000*sqrt(ranks)}. With --weak the problem has to
grow that way. See docs/trace.md.

  awaken scale -- awaken exec ./ghost_exchange -i 20000 -j 20000 -I 100
  awaken scale --weak -- awaken exec ./ghost_exchange -i 20000 -j '{5000*ranks}' -I 100
  awaken scale --weak -- awaken exec ./xtx --dofs '{50000*ranks}'
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=_counts, default=[1, 2, 4], metavar="LIST", help="default 1,2,4")
    parser.add_argument("--repeat", type=_positive, default=3, metavar="N", help="runs at each number; default 3")
    parser.add_argument("--weak", action="store_true", help="each rank keeps its share of the problem, see below")
    parser.add_argument(
        "--launcher",
        "--mpiexec",
        default="mpiexec -n {ranks}",
        metavar="'WORDS'",
        help="put before the program; default 'mpiexec -n {ranks}'; empty: the program starts its ranks itself",
    )
    result = parser.add_mutually_exclusive_group()
    result.add_argument(
        "--figure", choices=sorted(PATTERNS), help="which time of the programs under apps/; default: the whole run's"
    )
    result.add_argument(
        "--pattern", type=_regular_expression, metavar="REGEX", help="finds the seconds in any program's output"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("scale.json"), metavar="FILE.json", help="default scale.json"
    )
    parser.add_argument("--json", action="store_true", help="print what is in the JSON file, instead of the table")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="default: beside the JSON")
    parser.add_argument("--title", help="of the picture; default: the program")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of one run; default 600")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def picture_of(options: argparse.Namespace) -> Path:
    picture: Path = options.picture or options.output.with_suffix(".svg")
    return picture


def _save(study: Study, options: argparse.Namespace, title: str) -> None:
    """After each run, so that what was measured is there whatever happens next. Raises output_files.Misuse."""
    output_files.write(str(options.output), study.as_json())
    if study.points():
        draw(study, title).save(picture_of(options))


def _measure(
    study: Study, options: argparse.Namespace, launcher: Sequence[str], patterns: Sequence[str], title: str
) -> None:
    total = options.repeat * len(options.ranks)
    # All numbers of ranks in turn, so that a machine that slows down does so for all of them.
    for _ in range(options.repeat):
        for ranks in options.ranks:
            run = Run(ranks, [fill(word, ranks) for word in [*launcher, *study.command]])
            run_once(run, patterns, options.timeout)
            study.runs.append(run)
            outcome = run.problem or f"{run.seconds:.6g} s"
            print(f"awaken: {len(study.runs)}/{total}: {ranks_text(ranks)}: {outcome}", file=sys.stderr, flush=True)
            _save(study, options, title)


def run(arguments: Sequence[str]) -> int:
    """`awaken scale`; returns the exit status: 1 when a run failed, 2 for a wrong use."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no program is given: write awaken scale [OPTION...] -- PROGRAM [ARGUMENT...]")
    if not 0 < options.timeout <= LONGEST_TIMEOUT_S:
        parser.error(f"--timeout has to be more than 0 seconds, and at most {LONGEST_TIMEOUT_S}")
    try:
        launcher = with_ranks(shlex.split(options.launcher), command)
    except ValueError as error:
        parser.error(f"--launcher {options.launcher} is not a command ({error}): write it as for a shell")
    if options.output.suffix == ".svg":
        parser.error("--output is the JSON file; the picture's name is --picture")
    try:
        check_command(launcher, command, options.ranks)
    except ScaleError as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    if options.weak and not any(re.search(r"\{[^{}]*ranks[^{}]*\}", word) for word in command):
        parser.error("--weak needs a word that grows with the ranks, such as -j {2000*ranks}")
    figure = options.figure or ("pattern" if options.pattern else "automatic")
    patterns = (
        [options.pattern]
        if options.pattern
        else [PATTERNS[n] for n in ([options.figure] if options.figure else AUTOMATIC)]
    )
    study = Study(list(command), options.weak, figure)
    title = options.title or ("Weak" if options.weak else "Strong") + " scaling of " + program_of(command)
    try:
        jobs.leave_or_refuse("scale", os.environ)
        for file in (options.output, picture_of(options)):
            output_files.check(str(file))
        _measure(study, options, launcher, patterns, title)
    except (ScaleError, output_files.Misuse) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt as interrupt:
        kept = f" after {len(study.runs)} of its runs, which are in {options.output}" if study.runs else ""
        print(f"awaken: ended{kept or ' before the first run was over'}", file=sys.stderr)
        return interruption.exit_status(interrupt)
    finally:
        if study.points():
            print(study.as_json() if options.json else table_text(study) + "\n", end="")
    failed = sum(1 for run in study.runs if run.problem)
    if failed:
        print(f"awaken: {failed} of {len(study.runs)} runs failed; {options.output} says why", file=sys.stderr)
    return FAILED if failed else 0
