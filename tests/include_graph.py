# SPDX-License-Identifier: Apache-2.0
"""The include graph of src: which folder uses which.

By hand, `python tests/include_graph.py` prints the graph, as Mermaid.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
INSIDE = ("gpu/kernels",)
"""Folders inside of these have no place in the order of their own."""


def folder_of(path: Path, source: Path = SOURCE) -> str:
    """The folder of a file, relative to src: `coll/device`."""
    folder = path.parent.relative_to(source).as_posix()
    return folder.split("/")[0] if folder in INSIDE else folder


def read_order(text: str) -> list[str]:
    """The folders of src in CONTRIBUTING.md, lowest first: the first column of the table of them."""
    folders = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "folder of `src`":
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not set(cells[0]) <= set("- :"):
            folders.append(cells[0].strip("`"))
    return folders


def read_includes(source: Path = SOURCE) -> dict[Path, list[Path]]:
    """By file of src, the files of src that it includes."""
    files = sorted(path for path in source.rglob("*") if path.suffix in (".h", ".cpp", ".S"))
    known = set(files)
    includes = {}
    for path in files:
        names = re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.MULTILINE)
        near = [path.parent / name for name in names]
        far = [source / name for name in names]
        includes[path] = [each for each in (*near, *far) if each in known]
    return includes


def upward_includes(order: list[str], includes: dict[Path, list[Path]], source: Path = SOURCE) -> list[str]:
    """One line for each include of a file in a folder that comes later in the order."""
    place = {folder: index for index, folder in enumerate(order)}
    found = []
    for path, others in includes.items():
        for other in others:
            lower, upper = folder_of(path, source), folder_of(other, source)
            if place[upper] > place[lower]:
                names = f"{path.relative_to(source)} includes {other.relative_to(source)}"
                found.append(f"{names}: {upper} is above {lower}")
    return found


def with_mpi(includes: dict[Path, list[Path]]) -> set[Path]:
    """The files that know an MPI: they include mpi.h, by themselves or through others, or are in an ABI's namespace."""
    knows_mpi = re.compile(r"#\s*include <mpi\.h>|^namespace awaken::AWAKEN_ABI", re.MULTILINE)
    found = {path for path in includes if knows_mpi.search(path.read_text())}
    size = -1
    while size != len(found):
        size = len(found)
        found |= {path for path, others in includes.items() if found & set(others)}
    return found


def mixed_folders(includes: dict[Path, list[Path]], source: Path = SOURCE) -> dict[str, list[str]]:
    """Folders in which some files know an MPI and some do not, with those that do not."""
    mpi = with_mpi(includes)
    folders = {folder_of(path, source) for path in mpi}
    mixed = defaultdict(list)
    for path in includes:
        if folder_of(path, source) in folders and path not in mpi:
            mixed[folder_of(path, source)].append(path.name)
    return dict(mixed)


def mermaid(order: list[str], includes: dict[Path, list[Path]]) -> str:
    """The graph, without the arrows that follow from others."""
    uses: dict[str, set[str]] = defaultdict(set)
    for path, others in includes.items():
        uses[folder_of(path)] |= {folder_of(other) for other in others} - {folder_of(path)}
    reach: dict[str, set[str]] = {}
    for folder in order:
        reach[folder] = set(uses[folder]).union(*(reach[other] for other in uses[folder]))
    lines = ["flowchart TB"]
    for folder in reversed(order):
        direct = {other for other in uses[folder] if not any(other in reach[via] for via in uses[folder] - {other})}
        for other in sorted(direct, key=order.index, reverse=True):
            lines.append(f"    {folder.replace('/', '_')}[{folder}] --> {other.replace('/', '_')}[{other}]")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(mermaid(read_order((ROOT / "CONTRIBUTING.md").read_text()), read_includes()) + "\n")
