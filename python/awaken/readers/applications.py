"""Output of the programs of apps/ other than the ping-pongs: ghost_exchange, xtx, allreduce (docs/apps.md).

Each has a line or two of the original program's, and lines that begin with # and tell of everything else:

    GhostExchange_ArrayAssign_HIP Timing is stencil 0.078 boundary condition 0.015 ghost cell 0.039 total 0.158
    Time in seconds: 3.820170750009310723e-02
    Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: 2.305078999984289112e-02
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from awaken import units
from awaken.applications import Application
from awaken.readers.source import Log, Notes, clean, number
from awaken.results import Document

NAME = "programs of apps/"
NUMBER = r"([0-9][0-9.eE+-]*)"


@dataclass(frozen=True)
class Program:
    """How a program's output is told from others', and what is read of it."""

    name: str
    result: re.Pattern[str]
    """The line without which there is no result."""
    problem: tuple[re.Pattern[str], ...]
    """Lines that say what was computed; their group is shown."""
    figures: tuple[tuple[str, re.Pattern[str], Callable[[float], str]], ...]
    """Title, line with a number, and how that is shown."""
    right: re.Pattern[str]
    wrong: re.Pattern[str]


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.MULTILINE)


def seconds(value: float) -> str:
    return units.time(value * 1e6)


GHOST = r"Timing is stencil {0} boundary condition {1} ghost cell {2} total {3}"


def ghost(field: int) -> re.Pattern[str]:
    return pattern(GHOST.format(*(NUMBER if index == field else r"\S+" for index in range(4))))


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
        pattern(r"^Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: \S+"),
        (pattern(r"^# (Sum of .*)"), pattern(r"^# (\d+ timed calls .*)")),
        (
            ("MPI, each call waited for", each_call("standard MPI", "waited"), units.time),
            ("NCCL or RCCL, each call waited for", each_call("[NR]CCL", "waited"), units.time),
            ("MPI, calls queued", each_call("standard MPI", "queued"), units.time),
            ("NCCL or RCCL, calls queued", each_call("[NR]CCL", "queued"), units.time),
        ),
        pattern(r"^# All sums are exact on all ranks\."),
        pattern(r"^wrong data: "),
    ),
)


def found_in(log: Log) -> bool:
    return any(program.result.search(log.text) for program in PROGRAMS)


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds each program's run to the document."""
    lines = list(log.lines(notes))
    texts = [line for _, line in lines]
    for program in PROGRAMS:
        at = next((place for place, line in lines if program.result.search(line)), None)
        if at is None:
            continue
        figures = []
        for title, line, shown in program.figures:
            found = _first(line, texts)
            value = number(found) if found else None
            if value is not None:
                figures.append((title, shown(value)))
        if not figures:
            notes.add(at, f"the result of {program.name} has no number that can be read: it is left out")
            continue
        problem = [clean(found) for line in program.problem if (found := _first(line, texts))]
        wrong = any(program.wrong.search(line) for line in texts)
        right = any(program.right.search(line) for line in texts)
        checked = False if wrong else True if right else None
        document.applications.append(
            Application(document.label, program.name, "; ".join(problem), tuple(figures), checked)
        )


def _first(line: re.Pattern[str], texts: list[str]) -> str:
    return next((found.group(1) for text in texts if (found := line.search(text))), "")
