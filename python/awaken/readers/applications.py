# SPDX-License-Identifier: Apache-2.0
"""Output of the programs of apps/ other than the ping-pongs: ghost_exchange, xtx, allreduce (docs/apps.md).

Each has a line or two of the original program's, and lines that begin with # and tell of everything else:

    GhostExchange_ArrayAssign_HIP Timing is stencil 0.078 boundary condition 0.015 ghost cell 0.039 total 0.158
    Time in seconds: 3.820170750009310723e-02
    Time in seconds for GPU Direct MPI_Allreduce using NCCL/RCCL: 1.144141500003570400e-02
    Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: 2.305078999984289112e-02

The original programs print those lines alone. One log may hold several runs of a program, with a heading before each.
On a page with blocks of code (```), the underlined title of a section belongs to a run's heading, and so does what
`module load` names of MPI and GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from awaken import units
from awaken.applications import Application
from awaken.readers.source import Log, Notes, clean, number
from awaken.results import Document

NAME = "programs of apps/"
FURTHEST_HEADING, LONGEST_HEADING = 6, 120
UNDERLINE = re.compile(r"[ \t]*(?:-{4,}|={4,})[ \t]*")
MODULE = re.compile(r"(?:rocm|cuda\w*|[\w-]*mpi[\w-]*|nccl|rccl)(?:/\S{1,40})?", re.IGNORECASE)
Lines = Sequence[tuple[int, str]]
NUMBER = r"([0-9][0-9.eE+-]*)"


@dataclass(frozen=True)
class Program:
    """How a program's output is told from others', and what is read of it."""

    name: str
    result: re.Pattern[str]
    """A line without which there is no result."""
    problem: tuple[re.Pattern[str], ...]
    """Lines that say what was computed; their group is shown."""
    figures: tuple[tuple[str, re.Pattern[str], Callable[[float], str]], ...]
    """Title, line with a number, and how that is shown."""
    right: re.Pattern[str]
    wrong: re.Pattern[str]
    first: re.Pattern[str] | None = None
    """Of several lines of results, the one that a program prints before the others."""


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.MULTILINE)


def seconds(value: float) -> str:
    return units.time(value * 1e6)


GHOST = r"Timing is stencil {0} boundary condition {1} ghost cell {2} total {3}"


def ghost(field: int) -> re.Pattern[str]:
    return pattern(GHOST.format(*(NUMBER if index == field else r"\S+" for index in range(4))))


ALLREDUCE = r"^[ \t]*Time in seconds for GPU Direct MPI_Allreduce using {0}: {1}"


def each_call(library: str, mode: str) -> re.Pattern[str]:
    return pattern(rf"^# {library}.*\s{mode}\s+{NUMBER}\s")


PROGRAMS = (
    Program(
        "ghost exchange",
        pattern(r"Timing is stencil \S+ boundary condition \S+ ghost cell \S+ total \S+"),
        (pattern(r"^# (\d+ x \d+ cells on .*)"), pattern(r"^# (memory \S+, exchange .*)")),
        (
            ("stencil, all steps", ghost(0), seconds),
            ("boundary condition, all steps", ghost(1), seconds),
            ("halo exchange, all steps", ghost(2), seconds),
            ("total", ghost(3), seconds),
            ("bandwidth of the stencil, slowest rank", pattern(rf"^# stencil: {NUMBER} GB/s"), units.bandwidth),
            ("one halo exchange", pattern(rf"^# ghost cell: {NUMBER} us an update"), units.time),
        ),
        pattern(r"^# check \w+: right"),
        pattern(r"^# check \w+: WRONG"),
    ),
    Program(
        "X^T X",
        pattern(r"^Time in seconds: \S+"),
        (
            pattern(r"^# (S = X\^T .*)"),
            pattern(r"^# (blocks: .*)"),
            pattern(r"^# (products: .*)"),
            pattern(r"^# (reductions: .*)"),
        ),
        (
            ("products beside reductions", pattern(rf"^Time in seconds: {NUMBER}"), seconds),
            ("products alone", pattern(rf"^# products alone: {NUMBER} s"), seconds),
            ("reductions alone", pattern(rf"^# reductions alone: {NUMBER} s"), seconds),
            ("ideal overlap", pattern(rf"^# T_ideal: {NUMBER} s"), seconds),
            ("times the ideal", pattern(rf"^# T_overlap: .* s, {NUMBER} x T_ideal"), units.digits),
        ),
        pattern(r"^# .* right at all ranks\."),
        pattern(r"^wrong data: "),
    ),
    Program(
        "MPI_Allreduce against NCCL or RCCL",
        pattern(ALLREDUCE.format("(?:NCCL/RCCL|standard MPI library)", r"\S+")),
        (pattern(r"^# (Sum of .*)"), pattern(r"^# (\d+ timed calls .*)")),
        (
            (
                "MPI, all calls, each waited for",
                pattern(ALLREDUCE.format("standard MPI library", NUMBER)),
                seconds,
            ),
            ("NCCL or RCCL, all calls, queued", pattern(ALLREDUCE.format("NCCL/RCCL", NUMBER)), seconds),
            ("MPI, each call waited for", each_call("standard MPI", "waited"), units.time),
            ("NCCL or RCCL, each call waited for", each_call("[NR]CCL", "waited"), units.time),
            ("MPI, calls queued", each_call("standard MPI", "queued"), units.time),
            ("NCCL or RCCL, calls queued", each_call("[NR]CCL", "queued"), units.time),
        ),
        pattern(r"^# All sums are exact on all ranks\."),
        pattern(r"^wrong data: "),
        pattern(ALLREDUCE.format("NCCL/RCCL", "")),
    ),
)


def found_in(log: Log) -> bool:
    return any(program.result.search(log.text) for program in PROGRAMS)


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds each program's runs to the document."""
    lines = list(log.lines(notes))
    sections = _sections(lines) if "```" in log.text else []
    for program in PROGRAMS:
        for start, end in _runs(program, lines):
            first = next((at for at in range(start, end) if program.result.search(lines[at][1])), start)
            section = next((words for at, words in reversed(sections) if at <= first), "")
            _add(program, section, _heading(lines, start), lines[start:end], document, notes)


def _sections(lines: Lines) -> list[tuple[int, str]]:
    """From which line on which section of a page holds: its title, and what was last loaded."""
    found: list[tuple[int, str]] = []
    title, modules, block, of_block = "", list[str](), 0, -1
    for at, (_, line) in enumerate(lines):
        words = line.split()
        before = lines[at - 1][1].strip() if at else ""
        if line.lstrip().startswith("```"):
            block += 1
        elif UNDERLINE.fullmatch(line) and re.search(r"\w", before) and len(before) <= LONGEST_HEADING:
            title, modules = before.strip("# "), []
        elif words[:1] == ["module"] and len(words) > 2:
            if block != of_block:
                modules, of_block = [], block
            modules += [clean(word) for word in words[2:] if MODULE.fullmatch(word)]
        else:
            continue
        told = ", ".join(filter(None, [clean(title), *modules]))
        if told != (found[-1][1] if found else ""):
            found.append((at, told))
    return found


def _runs(program: Program, lines: Lines) -> list[tuple[int, int]]:
    """Where in a log each run begins and ends. A run has its first kind of result once, and no kind twice. A program
    that tells its problem before its results begins with that."""
    results: list[tuple[int, str]] = []
    starts: list[int] = []
    for index, (_, line) in enumerate(lines):
        found = program.result.search(line)
        if found:
            results.append((index, re.split(r"[:\d]", found.group(0))[0]))
    problems = [index for index, (_, line) in enumerate(lines) if program.problem[0].search(line)] if results else []
    leads = bool(problems) and problems[0] < results[0][0]
    seen: set[str] = set()
    before = -1
    for index, kind in results:
        first = program.first is not None and program.first.search(lines[index][1])
        if not starts or kind in seen or first:
            between = [at for at in problems if before < at < index] if leads else []
            starts.append(between[-1] if between else index)
            seen = set()
        seen.add(kind)
        before = index
    if len(starts) == 1:
        return [(0, len(lines))]
    return list(zip(starts, [*starts[1:], len(lines)]))


def _heading(lines: Lines, start: int) -> str:
    """What stands before a run: "1 node and 6 GPUs:", and what a shell was told after it."""
    told: list[str] = []
    for _, line in reversed(lines[max(0, start - FURTHEST_HEADING) : start]):
        words = line.strip(" #")
        if words.endswith(":") and len(words) <= LONGEST_HEADING:
            return ", ".join([words[:-1], *reversed(told)])
        if words.startswith("export "):
            told.append(words[len("export ") :])
        elif words.strip("`"):
            break
    return ""


def _add(program: Program, section: str, heading: str, run: Lines, document: Document, notes: Notes) -> None:
    texts = [line for _, line in run]
    figures = []
    numbers = {}
    for title, line, shown in program.figures:
        found = _first(line, texts)
        value = number(found) if found else None
        if value is not None:
            figures.append((title, shown(value)))
            numbers[title] = value
    if not figures:
        at = next(place for place, line in run if program.result.search(line))
        notes.add(at, f"the result of {program.name} has no number that can be read: it is left out")
        return
    problem = [clean(found) for line in program.problem if (found := _first(line, texts))]
    wrong = any(program.wrong.search(line) for line in texts)
    right = any(program.right.search(line) for line in texts)
    checked = False if wrong else True if right else None
    document.applications.append(
        Application(
            document.label,
            program.name,
            "; ".join([*([clean(heading)] if heading else []), *problem]),
            tuple(figures),
            checked,
            clean(", ".join(filter(None, [section, heading]))),
            numbers,
        )
    )


def _first(line: re.Pattern[str], texts: Sequence[str]) -> str:
    return next((found.group(1) for text in texts if (found := line.search(text))), "")
