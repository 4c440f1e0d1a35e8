"""Rules for sources that no formatter or linter of ours knows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def read_sources() -> dict[str, str]:
    """The texts of all files that git tracks or does not know yet, by path from the root."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split("\0")
    return {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in names
        if name and (ROOT / name).is_file()
    }


SOURCES = read_sources()


def lines_with(pattern: str, sources: Mapping[str, str], suffixes: tuple[str, ...]) -> Iterator[str]:
    """Where the pattern occurs, as "file:line"."""
    for name, text in sources.items():
        if name.endswith(suffixes):
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(pattern, line):
                    yield f"{name}:{number}"


# ---- locks -----------------------------------------------------------------------------------------------------------

CPP = (".cpp", ".h", ".hip")


def test_locks_are_scoped_locks() -> None:
    """std::scoped_lock does what std::lock_guard does, also for several mutexes."""
    assert list(lines_with(r"\block_guard\b", SOURCES, CPP)) == []


def test_another_lock_is_found() -> None:
    text = "// A lock.\nconst std::lock_guard lock(_mutex);\n"
    assert list(lines_with(r"\block_guard\b", {"src/a.cpp": text, "a.md": text}, CPP)) == ["src/a.cpp:2"]
