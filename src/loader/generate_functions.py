#!/usr/bin/env python3
"""Reads the mpi.h of each MPI ABI and writes the tables from which the entry points are made.

Usage: generate_functions.py SOURCE_DIRECTORY OUTPUT_DIRECTORY ABI=DECLARATIONS ...

DECLARATIONS is the ABI's mpi.h after the preprocessor. SOURCE_DIRECTORY is searched for the functions that are
served, which
get a number even where no header at hand declares them (a build against one old MPI).

Writes into OUTPUT_DIRECTORY:
  functions.inc        AWAKEN_FUNCTION(index, Send) for every function of any of the ABIs, numbered from 0
  native_<ABI>.inc     AWAKEN_NATIVE(Send) for each function that this ABI's header declares and that we may call,
                       AWAKEN_ABSENT(...) for the others

Only names are read: the types come from the headers themselves, through decltype, where the tables are used. Files are
rewritten only when they change, so that an unchanged header causes no rebuild.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Predefined callbacks: programs and libraries compare their addresses, so they must stay the MPI's own.
CALLBACKS = re.compile(r"(_FN|_fn|_function|_cb|_FN_NULL)$|^(DUP_FN|NULL_|CONVERSION_FN)")
# Passed through by name only. Some ABIs define these as macros, and none of them carries a buffer.
PASSED_THROUGH = re.compile(r"^T_|^Aint_(add|diff)$|_(c2f|f2c|f082c|c2f08|f2f08|f082f|fromint|toint)$")


# Used through the tables where they exist, without being served.
CALLED = {"Type_get_envelope_c", "Type_get_contents_c"}


def served(sources: Path) -> set[str]:
    """Names in the AWAKEN_SERVE and AWAKEN_WAITS lines of the sources."""
    names: set[str] = set()
    for source in sorted(sources.rglob("*.cpp")):
        text = source.read_text(encoding="utf-8")
        names |= set(re.findall(r"AWAKEN_SERVE\((\w+),", text))
        names |= set(re.findall(r"^ +AWAKEN_WAITS\((\w+)\)", text, re.MULTILINE))
        for blocking, nonblocking in re.findall(r"AWAKEN_SERVE_COLLECTIVE\((\w+), (\w+),", text):
            for name in (blocking, nonblocking, f"{blocking}_init"):
                names |= {name, f"{name}_c"}
    return names


def declared(declarations: Path) -> set[str]:
    """Names X for which a function PMPI_X is declared."""
    text = declarations.read_text(encoding="utf-8", errors="replace")
    names = set(re.findall(r"\bPMPI_(\w+)\s*\(", text))
    return {name for name in names if not CALLBACKS.search(name)}


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or any("=" not in argument for argument in arguments[2:]):
        print(__doc__, file=sys.stderr)
        return 2
    output = Path(arguments[1])
    output.mkdir(parents=True, exist_ok=True)
    abis: dict[str, set[str]] = {}
    for argument in arguments[2:]:
        abi, declarations = argument.split("=", 1)
        abis[abi] = declared(Path(declarations))
        if "Send" not in abis[abi]:
            print(f"generate_functions.py: {declarations} declares no PMPI_Send: not an mpi.h", file=sys.stderr)
            return 1
    union = sorted(set.union(*abis.values()) | served(Path(arguments[0])) | CALLED)
    write_if_changed(
        output / "functions.inc",
        "".join(f"AWAKEN_FUNCTION({index}, {name})\n" for index, name in enumerate(union)),
    )
    for abi, names in abis.items():
        typed = {name for name in names if not PASSED_THROUGH.search(name)}
        lines = [f"{'AWAKEN_NATIVE' if name in typed else 'AWAKEN_ABSENT'}({name})\n" for name in union]
        write_if_changed(output / f"native_{abi}.inc", "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
