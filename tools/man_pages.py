# SPDX-License-Identifier: Apache-2.0
"""Writes docs/man, the manual pages of `awaken` and its commands, from the tables that make the help.

They are kept in the tree, since a build for another machine cannot run the programs that know the tables. A test
compares them with what the build under test says (tests/cli/test_completion.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "man"


def roff(text: str) -> str:
    """Text for roff: what begins like a request is none, and hyphens can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def paragraphs(text: str) -> list[str]:
    """Paragraphs, of which those that are indented are examples and keep their lines."""
    lines: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        if paragraph.startswith(" "):
            lines += [".PP", ".nf", roff(paragraph), ".fi"]
        else:
            lines += [".PP", roff(paragraph)]
    return lines[1:] if lines[:2] != [".PP", ".nf"] else lines


def head(name: str, version: str, summary: str) -> list[str]:
    return [
        '.\\" SPDX-License-Identifier: Apache-2.0',
        '.\\" Written by tools/man_pages.py.',
        f'.TH {roff(name.upper())} 1 "" "Awaken {version}" "Awaken"',
        ".SH NAME",
        f"{roff(name)} \\- {roff(summary)}",
        ".SH SYNOPSIS",
    ]


def term(words: str, text: str) -> list[str]:
    return [".TP", f"\\fB{roff(words)}\\fR", *([roff(text)] if text else [])]


def settings_of(awaken: Path) -> list[str]:
    """The settings, for the page about them; the environment's values are no part of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWAKEN_")}
    listed = json.loads(
        subprocess.run(
            [awaken, "settings", "--json"], capture_output=True, text=True, check=True, env=environment
        ).stdout
    )
    lines = []
    for title, kind in (("ENVIRONMENT", "settings"), ("FIGURES OF AWAKEN_TUNE", "figures")):
        lines.append(f".SH {roff(title)}")
        for one in listed[kind]:
            default = f" Default: {one['default']}." if one["default"] else ""
            lines += term(f"{one['name']} = {one['values']}", f"{one['meaning']}.{default}")
    return lines


def pages(awaken: Path) -> dict[str, str]:
    """Text by file name. `awaken` is the program of a complete build or installation."""
    os.environ["PATH"] = f"{awaken.parent}:{os.environ['PATH']}"
    sys.path.insert(0, str(ROOT / "python"))
    from awaken import completion, installation

    installation.native_program = lambda: awaken
    version = json.loads(subprocess.run([awaken, "help", "--json"], capture_output=True, check=True).stdout)["version"]
    commands = completion.commands()
    others = ", ".join(f"\\fBawaken\\-{command.name}\\fR(1)" for command in commands)
    lines = [
        *head("awaken", version, "makes any MPI GPU-aware"),
        "\\fBawaken\\fR COMMAND [ARGUMENTS]",
        ".SH DESCRIPTION",
        "Preloaded into an unmodified MPI program, Awaken lets pointers to CUDA and ROCm device memory be passed to",
        "MPI calls (awaken exec). The other commands measure, examine and report.",
        ".SH COMMANDS",
    ]
    for command in commands:
        lines += term(command.name, command.summary)
    written = {"awaken.1": [*lines, ".SH SEE ALSO", others]}
    for command in commands:
        name = f"awaken-{command.name}"
        lines = [*head(name, version, command.summary), roff(command.usage)]
        if command.description:
            lines += [".SH DESCRIPTION", *paragraphs(command.description)]
        lines.append(".SH OPTIONS")
        for option in command.options:
            argument = f"[{option.argument}]" if option.may_lack_argument and option.argument else option.argument
            lines += term(", ".join(option.names) + (f" {argument}" if argument else ""), option.help)
        if command.name == "bench":
            lines.append(".SH TESTS")
            for test, summary in command.words.items():
                lines += term(test, summary)
        if command.name == "settings":
            lines += settings_of(awaken)
        if command.epilog:
            lines += [".SH NOTES", *paragraphs(command.epilog)]
        written[f"{name}.1"] = [*lines, ".SH SEE ALSO", "\\fBawaken\\fR(1)"]
    return {name: "\n".join(lines) + "\n" for name, lines in written.items()}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="default: build/release")
    parser.add_argument("--output", type=Path, default=PAGES, metavar="DIR", help="default: docs/man")
    options = parser.parse_args(words)
    awaken = options.build.absolute() / "bin" / "awaken"
    if not awaken.exists():
        sys.exit(f"man_pages: there is no {awaken}: run `make`, or name another build with --build")
    written = pages(awaken)
    options.output.mkdir(exist_ok=True)
    for old in options.output.glob("*.1"):
        old.unlink()
    for name, text in written.items():
        (options.output / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
