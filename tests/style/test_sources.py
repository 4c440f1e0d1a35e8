# SPDX-License-Identifier: Apache-2.0
"""Rules for sources that no formatter or linter of ours knows."""

from __future__ import annotations

import ast
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


# ---- the licence -----------------------------------------------------------------------------------------------------

LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENSED = (
    *(".cpp", ".h", ".c", ".inc", ".S", ".cu", ".hip", ".f90", ".py", ".sh", ".cmake", ".cmake.in", ".map"),
    *(".yml", ".yaml", "CMakeLists.txt", "Makefile", "Containerfile", ".ci/run"),
)
"""How names of sources end. Data, pages and what is generated have no such line."""


def without_licence(sources: Mapping[str, str]) -> list[str]:
    missing = []
    for name, text in sources.items():
        first, *others = text.splitlines() or [""]
        line = others[0] if first.startswith("#!") and others else first
        if name.endswith(LICENSED) and not re.fullmatch(rf"(//|#|!|/\*) {LICENCE}( \*/)?", line):
            missing.append(name)
    return missing


def test_sources_name_their_licence_first() -> None:
    missing = without_licence(SOURCES)
    assert missing == [], f"their first line is to be a comment with {LICENCE}"


def test_a_source_without_a_licence_is_found() -> None:
    sources = {
        "a.cpp": f"// {LICENCE}\n",
        "b.h": f"#pragma once\n// {LICENCE}\n",
        "c.sh": f"#!/bin/sh\n# {LICENCE}\n",
        "d.py": "",
        "e.h": f"/* {LICENCE} */\n",
        "f.f90": "! SPDX-License-Identifier: MIT\n",
        "g.md": "# A page\n",
    }
    assert without_licence(sources) == ["b.h", "d.py", "f.f90"]


# ---- locks -----------------------------------------------------------------------------------------------------------

CPP = (".cpp", ".h", ".hip")


def test_locks_are_scoped_locks() -> None:
    """std::scoped_lock does what std::lock_guard does, also for several mutexes."""
    assert list(lines_with(r"\block_guard\b", SOURCES, CPP)) == []


def test_another_lock_is_found() -> None:
    text = "// A lock.\nconst std::lock_guard lock(_mutex);\n"
    assert list(lines_with(r"\block_guard\b", {"src/a.cpp": text, "a.md": text}, CPP)) == ["src/a.cpp:2"]


# ---- docs of Python's constants and attributes -----------------------------------------------------------------------


def comments_as_docs(sources: Mapping[str, str]) -> Iterator[str]:
    """Where a comment stands right above a constant or an attribute, as "file:line"."""
    for name, text in sources.items():
        if not name.endswith(".py"):
            continue
        lines = text.splitlines()
        tree = ast.parse(text, name)
        for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef))):
            for node in scope.body:
                if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                    continue
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                above = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
                # A line of dashes begins a section.
                if isinstance(target, ast.Name) and above.startswith("#") and not above.startswith("# ---"):
                    yield f"{name}:{node.lineno}"


def test_docs_of_constants_are_strings_below() -> None:
    """As documentation tools and editors take them; most of ours are written so."""
    assert list(comments_as_docs(SOURCES)) == []


def test_a_comment_above_a_constant_is_found() -> None:
    text = "# ---- numbers ----\nA = 1\n#: Two.\nB = 2\nC = 3\n'''Three.'''\nclass D:\n    # Four.\n    e: int = 4\n"
    assert list(comments_as_docs({"a.py": text, "b.cpp": "# x\n"})) == ["a.py:4", "a.py:9"]


# ---- vendors ---------------------------------------------------------------------------------------------------------

VENDOR_FILES = {
    "bench/engine/device_facts.cpp",
    "bench/mpi/engine.cpp",
    "bench/mpi/mpi_communication.cpp",
    "bench/mpi/one_sided.cpp",
    "bench/mpi/placement.cpp",
    "bench/probe/facts.cpp",
    "bench/topology/main.cpp",
    "bench/topology/rocm_smi.cpp",
    "src/call/support_queries.h",
    "src/ccl/locate.cpp",
    "src/gpu/cuda.cpp",
    "src/gpu/expected_vendor.cpp",
    "src/gpu/find.cpp",
    "src/gpu/gpu.h",
    "src/gpu/hip.cpp",
    "src/gpu/memory_kinds.cpp",
    "src/gpu/none.cpp",
}
"""Who adds a vendor changes these: src/gpu/README.md. All others ask gpu::Runtime for the property."""


def files_with_vendors(sources: Mapping[str, str]) -> set[str]:
    inside = {name: text for name, text in sources.items() if name.startswith(("src/", "bench/"))}
    return {place.rpartition(":")[0] for place in lines_with(r"\bVendor::", inside, CPP)}


def test_vendors_are_compared_where_the_guide_says() -> None:
    assert files_with_vendors(SOURCES) == VENDOR_FILES
    guide = SOURCES["src/gpu/README.md"]
    assert [name for name in VENDOR_FILES if Path(name).name not in guide] == []


def test_a_further_file_that_compares_vendors_is_found() -> None:
    text = "const bool is_hip = gpu.vendor() == gpu::Vendor::hip;\n"
    assert files_with_vendors({"src/ipc/a.cpp": text, "src/ipc/b.cpp": "// a Vendor\n", "tests/c.cpp": text}) == {
        "src/ipc/a.cpp"
    }
