# SPDX-License-Identifier: Apache-2.0
"""Where this installation keeps the native programs that the Python commands start."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

NOT_FOUND = 127


class NotInstalled(Exception):
    """A part of the installation is missing; the text says what to do."""


def native_program() -> Path | None:
    """The program `awaken`: that of the prefix which holds this package, else the environment's, else PATH's first."""
    # <prefix>/lib/awaken/python/awaken/installation.py, or the environment's site-packages.
    folder = Path(__file__).absolute().parent
    candidates = [Path(sysconfig.get_path("scripts")) / "awaken"]
    if folder.parts[-4:-1] == ("lib", "awaken", "python"):
        candidates.insert(0, folder.parents[3] / "bin" / "awaken")
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("awaken")
    return Path(found) if found else None


def run_native(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process with the native program; exits with status 127 when there is none."""
    try:
        program = required_program("awaken")
    except NotInstalled as error:
        print(f"awaken: {error}", file=sys.stderr)
        sys.exit(NOT_FOUND)
    os.execv(program, [str(program), *arguments])


def required_program(name: str) -> Path:
    """bin/awaken for "awaken", else a program of lib/awaken/bench. Raises NotInstalled."""
    awaken = native_program()
    if awaken is None:
        raise NotInstalled("the program awaken is not installed: install the package again (pip install .)")
    if name == "awaken":
        return awaken
    program = awaken.resolve().parent.parent / "lib" / "awaken" / "bench" / name
    if not os.access(program, os.X_OK):
        raise NotInstalled(
            f"this installation has no {program}: build Awaken with -DAWAKEN_BUILD_BENCH=ON and nlohmann-json installed"
        )
    return program
