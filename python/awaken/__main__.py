# SPDX-License-Identifier: Apache-2.0
"""The commands of `awaken` that are written in Python; the native program `awaken` passes on what it does not know."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from awaken import interruption
from awaken.installation import run_native
from awaken.plain_text import clean

NATIVE_COMMANDS = ("exec", "bench", "settings", "version", "help")
"""What the native program does itself."""

COMMANDS = ("compare", "completion", "doctor", "report", "scale", "topo", "trace")
"""What this package does: each is a module of it, whose run() takes the arguments after the name and returns the exit
status."""

USAGE_ERROR = 2


def remedy(name: str) -> str:
    """What to write instead of a command that does not exist."""
    known = (*NATIVE_COMMANDS, *COMMANDS)
    if name.startswith("osu_"):
        return f"write awaken bench {name}, or {name} alone"
    nearest = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {nearest[0]}? " if nearest else "") + f"use one of {', '.join(known)}"


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status: 2 for a command that does not exist."""
    if not arguments or arguments[0].startswith("-") or arguments[0] in NATIVE_COMMANDS:
        run_native(arguments)
    if arguments[0] not in COMMANDS:
        print(f"awaken: there is no command {clean(arguments[0], 80)}: {remedy(arguments[0])}", file=sys.stderr)
        return USAGE_ERROR
    interruption.raise_for_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every locale has all that is printed (µs).
        sys.stdout.reconfigure(errors="backslashreplace")
    # Imported when it is asked for: no command waits for another's modules.
    command: Callable[[Sequence[str]], int] = importlib.import_module(f"awaken.{arguments[0]}").run
    return command(arguments[1:])


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough (head); nothing more may be written, at the exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except OSError as error:
        if error.filename is not None:
            print(f"awaken: {clean(str(error.filename), 400)} cannot be used ({error.strerror})", file=sys.stderr)
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            print(f"awaken: the output cannot be written ({error.strerror})", file=sys.stderr)
        else:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = USAGE_ERROR
    except KeyboardInterrupt as interrupt:
        print("awaken: interrupted", file=sys.stderr)
        status = interruption.exit_status(interrupt)
    sys.exit(status)
