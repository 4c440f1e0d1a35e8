#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the mpi.h of each MPI ABI and writes the tables from which the entry points are made.

Usage: generate_functions.py SOURCE_DIRECTORY OUTPUT_DIRECTORY ABI=DECLARATIONS ...

DECLARATIONS is the ABI's mpi.h after the preprocessor. SOURCE_DIRECTORY is searched for the functions that are
served, which get a number even where no header at hand declares them (a build against one old MPI). What is known of
functions is in functions.txt beside this file.

Writes into OUTPUT_DIRECTORY:
  functions.inc        AWAKEN_FUNCTION(index, Send) for every function of any of the ABIs, numbered from 0
  native_<ABI>.inc     AWAKEN_NATIVE(Send) for each function that this ABI's header declares and that we may call,
                       AWAKEN_ABSENT(...) for the others
  function_traits.inc  AWAKEN_TRAITS(waits, requests, is_inquiry, handles_objects, nonblocking) for every function,
                       in their order
  mpi_names.inc        AWAKEN_CALLED(MPI_Send) or AWAKEN_OBJECT(ompi_mpi_comm_world) for every name of any of the ABIs

Only names are read: the types come from the headers themselves, through decltype, where the tables are used. Files are
rewritten only when they change, so that an unchanged header causes no rebuild.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

CALLBACKS = re.compile(r"(_FN|_fn|_function|_cb|_FN_NULL)$|^(DUP_FN|NULL_|CONVERSION_FN)")
"""Predefined callbacks: programs and libraries compare their addresses, so they must stay the MPI's own."""
PASSED_THROUGH = re.compile(r"^T_|^Aint_(add|diff)$|_(c2f|f2c|f082c|c2f08|f2f08|f082f|fromint|toint)$")
"""Passed through by name only. Some ABIs define these as macros, and none of them carries a buffer."""


CALLED = {"Type_get_envelope_c", "Type_get_contents_c"}
"""Used through the tables where they exist, without being served."""

FACTS = Path(__file__).with_name("functions.txt")
WAITS = {"begins": "nowhere", "polls": "polls"}
"""The words of functions.txt for where a function waits, and those of function_traits.h."""
WORDS = (*WAITS, "takes", "inquiry")
NEWEST = "Request_get_status_any"
"""What every header of MPI-4.1 or later declares: it knows all names of functions.txt."""
STARTS = re.compile(r"Grequest_start|Rput|Rget|Raccumulate|Rget_accumulate|Comm_idup\w*|File_i\w+|\w+_iflush\w*")
"""Functions that start an operation, and do not begin with I."""
STARTS_NOTHING = re.compile(r"Info_\w+|Init\w*|Intercomm_\w+|Is_\w+|Iprobe|Improbe")
"""Functions that begin with I, and start nothing."""
HANDLES_OBJECTS = re.compile(
    r"(Comm|Intercomm|Dist_graph|Cart|Graph|Group|Info|Type|Op|Errhandler)_(?!i?flush_)\w+"
    r"|(Win|File|Session)_[gs]et_\w+|File_(open|close)|(Alloc|Free)_mem"
)
"""Functions that make, ask, change or free objects and memory, and carry no data."""


class TableError(Exception):
    """functions.txt is wrong: the text says where, and what to do."""


def read_facts(path: Path, known: set[str] | None) -> dict[str, set[str]]:
    """The functions by fact. `known`: all functions that there are; None where that is not known."""
    facts: dict[str, set[str]] = {word: set() for word in WORDS}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        word, *names = line.split("#", 1)[0].split() or [""]
        if not word:
            continue
        if word not in facts:
            raise TableError(f"{path}:{number}: {word} is not a known property: use one of {', '.join(WORDS)}")
        for name in names:
            if known is not None and name not in known:
                raise TableError(f"{path}:{number}: no header declares MPI_{name}: correct the name")
            told = [other for other in (WAITS if word in WAITS else (word,)) if name in facts[other]]
            if told:
                raise TableError(f"{path}:{number}: {name} is named twice ({told[0]}, {word}): leave one")
            facts[word].add(name)
    return facts


def small_count(name: str) -> str:
    return name[:-2] if name.endswith("_c") else name


def request_role(name: str, facts: dict[str, set[str]]) -> str:
    """starts, makes, takes or none."""
    plain = small_count(name)
    if plain in facts["takes"]:
        return "takes"
    if plain.endswith("_init"):
        return "none" if plain == "Session_init" else "makes"
    starts = STARTS.fullmatch(plain) or (plain.startswith("I") and not STARTS_NOTHING.fullmatch(plain))
    return "starts" if starts else "none"


def handles_objects(name: str) -> bool:
    return HANDLES_OBJECTS.fullmatch(small_count(name)) is not None


def nonblocking_form(name: str, names: set[str]) -> str:
    """Isend for Send and Send_init, Isend_c for Send_c; the name itself where there is none."""
    plain = small_count(name).removesuffix("_init")
    form = "I" + plain[0].lower() + plain[1:] + ("_c" if name.endswith("_c") else "")
    return form if form in names else name


def traits(names: list[str], facts: dict[str, set[str]]) -> str:
    lines = []
    known = set(names)
    for name in names:
        plain = small_count(name)
        inquiry = "true" if plain in facts["inquiry"] else "false"
        objects = "true" if handles_objects(name) else "false"
        role, form = request_role(name, facts), nonblocking_form(name, known)
        unlisted = "nowhere" if role in ("starts", "makes") else "perhaps"
        waits = next((WAITS[word] for word in WAITS if plain in facts[word]), unlisted)
        lines.append(f"AWAKEN_TRAITS({waits}, {role}, {inquiry}, {objects}, {form})\n")
    return "".join(lines)


def served(sources: Path) -> set[str]:
    """Names in the AWAKEN_SERVE lines of the sources."""
    names: set[str] = set()
    for source in sorted(sources.rglob("*.cpp")):
        text = source.read_text(encoding="utf-8")
        names |= set(re.findall(r"AWAKEN_SERVE\((\w+),", text))
        for name in re.findall(r"AWAKEN_SERVE_COUNTS\((\w+),", text):
            names |= {name, f"{name}_c"}
        for blocking, nonblocking in re.findall(r"AWAKEN_SERVE_COLLECTIVE\((\w+), (\w+),", text):
            for name in (blocking, nonblocking, f"{blocking}_init"):
                names |= {name, f"{name}_c"}
    return names


def declared(declarations: Path) -> set[str]:
    """Names X for which a function PMPI_X is declared."""
    text = declarations.read_text(encoding="utf-8", errors="replace")
    names = set(re.findall(r"\bPMPI_(\w+)\s*\(", text))
    return {name for name in names if not CALLBACKS.search(name)}


def all_names(declarations: Iterable[Path]) -> str:
    """The lines of mpi_names.inc: also callbacks, extensions, and objects such as Open MPI's predefined handles."""
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in declarations)
    called = set(re.findall(r"\b((?:P?MPI|MPIX|MPIR|OMPI_C_MPI)_\w+)\s*\(", text))
    objects = set(re.findall(r"\bextern\b[^;(]*\b((?:MPI|ompi)_\w+)\s*;", text)) - called
    return "".join(
        f"{macro}({name})\n"
        for macro, names in (("AWAKEN_CALLED", called), ("AWAKEN_OBJECT", objects))
        for name in sorted(names)
    )


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
    headers: list[Path] = []
    for argument in arguments[2:]:
        abi, declarations = argument.split("=", 1)
        abis[abi] = declared(Path(declarations))
        headers.append(Path(declarations))
        if "Send" not in abis[abi]:
            print(f"generate_functions.py: {declarations} declares no PMPI_Send: not an mpi.h", file=sys.stderr)
            return 1
    known = set.union(*abis.values()) | served(Path(arguments[0])) | CALLED
    try:
        facts = read_facts(FACTS, known if NEWEST in set.union(*abis.values()) else None)
    except TableError as error:
        print(f"generate_functions.py: {error}", file=sys.stderr)
        return 1
    union = sorted(known)
    write_if_changed(
        output / "functions.inc",
        "".join(f"AWAKEN_FUNCTION({index}, {name})\n" for index, name in enumerate(union)),
    )
    write_if_changed(output / "mpi_names.inc", all_names(headers))
    write_if_changed(output / "function_traits.inc", traits(union, facts))
    for abi, names in abis.items():
        typed = {name for name in names if not PASSED_THROUGH.search(name)}
        lines = [f"{'AWAKEN_NATIVE' if name in typed else 'AWAKEN_ABSENT'}({name})\n" for name in union]
        write_if_changed(output / f"native_{abi}.inc", "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
