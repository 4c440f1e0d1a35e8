# SPDX-License-Identifier: Apache-2.0
"""How an MPI and its UCX were built, as their own tools and files tell: ompi_info, ucx_info, the modules of UCX."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from awaken.plain_text import clean

TOOL_S = 20.0
LONGEST_LINE = 1000
COMPONENT = re.compile(r"^\s*MCA (pml|accelerator|coll): (\w+)", re.MULTILINE)
CONFIGURED = re.compile(r"^\s*Configure command line: (.*(?:\n {20,}'.*)*)", re.MULTILINE)
UCX_VERSION = re.compile(r"^# (?:Library v|V)ersion:? (\S+)", re.MULTILINE)
UCX_CONFIGURED = re.compile(r"^# Configured with: (.*)", re.MULTILINE)
WITH_UCX = re.compile(r"--with-ucx=([^\s']+)")
LISTED = re.compile(r"^\s*libucp\.so\S* => (\S+) \(", re.MULTILINE)
UCP = "libucp.so.0"
MODULE = re.compile(r"libuct_(cuda|rocm)\.so")


def output_of(words: Sequence[str | Path], libraries: Path | None = None) -> str:
    """What a tool prints, with the libraries of a folder before others; nothing where it cannot be run, or takes too
    long."""
    search = [str(libraries)] if libraries else []
    search += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(search)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def examine(library: str, launcher: Sequence[str]) -> dict[str, Any]:
    """`open_mpi` and `ucx`, each null where the MPI has none or nothing tells of it.

    `library` is the MPI's, `launcher` what starts its ranks, which has ompi_info beside it.
    """
    open_mpi = _open_mpi([Path(library).parent.parent / "bin", *_folder_of(launcher)])
    return {"open_mpi": open_mpi, "ucx": _ucx(Path(library), (open_mpi or {}).get("configured", ""))}


def _folder_of(launcher: Sequence[str]) -> list[Path]:
    found = shutil.which(launcher[0]) if launcher else None
    return [Path(found).parent] if found else []


def _open_mpi(folders: Sequence[Path]) -> dict[str, Any] | None:
    tool = next((folder / "ompi_info" for folder in folders if (folder / "ompi_info").is_file()), None)
    text = output_of([tool]) if tool else ""
    components: dict[str, list[str]] = {}
    for kind, name in COMPONENT.findall(text):
        components.setdefault(kind, []).append(clean(name))
    if not components:
        return None
    configured = CONFIGURED.search(text)
    words = clean(" ".join(configured[1].split()), LONGEST_LINE) if configured else ""
    return {"tool": str(tool), "configured": words, "components": components}


def _ucx(library: Path, configured: str) -> dict[str, Any] | None:
    """The UCX that the MPI finds: its file, its modules for GPUs, and what its ucx_info tells."""
    component = library.parent / "openmpi" / "mca_pml_ucx.so"
    asked = Path(os.environ.get("AWAKEN_UCX", ""))
    other = next((folder for folder in (asked, asked / "lib", asked / "lib64") if (folder / UCP).is_file()), None)
    listed = [LISTED.search(output_of(["ldd", file], other)) for file in (library, component) if file.is_file()]
    file = next((Path(found[1]) for found in listed if found), None)
    if file is None:
        return None
    folder = file.parent
    modules = {name[1] for path in (folder / "ucx").glob("libuct_*") if (name := MODULE.match(path.name))}
    named = WITH_UCX.search(configured)
    prefixes = [folder.parent, *([Path(named[1])] if named else [])]
    tool = next((prefix / "bin" / "ucx_info" for prefix in prefixes if (prefix / "bin" / "ucx_info").is_file()), None)
    told = output_of([tool, "-v"], folder) if tool else ""
    version, words = UCX_VERSION.search(told), UCX_CONFIGURED.search(told)
    return {
        "library": str(file),
        "version": clean(version[1]) if version else None,
        "configured": clean(words[1], LONGEST_LINE) if words else None,
        "gpus": sorted(modules),
    }
