# SPDX-License-Identifier: Apache-2.0
"""Awaken makes any MPI GPU-aware.

MPI programs need nothing of this package: they are run by the native command `awaken exec`. The package holds the
commands that are written in Python (`awaken COMMAND`, or `python -m awaken COMMAND`). Programs that use mpi4py may
import `awaken.stream`, which queues MPI operations in a GPU's stream.
"""

# This file comes before all others of the package, and must be understood by each Python 3 that a cluster's `python3`
# may be, so that an old one is told and not left to a traceback. So: no annotations of variables, no newer syntax.
import os
import sys


def _leave_out_the_current_folder() -> None:
    """For `python -m awaken`: Python then looks for modules in the current folder first, and in each that an empty or
    relative entry of PYTHONPATH names, so that a json.py beside somebody's data would be executed. This package finds
    its own modules without them. What Python itself imports before this file is out of reach: sitecustomize, which is
    looked for in PYTHONPATH, and before 3.11 runpy and what it imports. start.py starts Python in a way that leaves
    these folders out from the beginning.
    """
    relative = [] if getattr(sys.flags, "safe_path", False) or sys.flags.isolated else [""]
    if not sys.flags.ignore_environment and os.environ.get("PYTHONPATH"):
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        relative += [entry for entry in entries if not os.path.isabs(entry)]  # noqa: PTH117
    for entry in relative:
        for spelling in (os.path.abspath(entry), entry):  # noqa: PTH100
            if spelling in sys.path:  # the first one only: a folder of Python itself stands there once more
                sys.path.remove(spelling)
                break


def _is_run_as_a_command() -> bool:
    """Whether this package is imported for `python -m awaken`, and not for the -m of another."""
    if sys.argv[:1] != ["-m"]:
        return False
    words = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if words is None:
        try:
            with open("/proc/self/cmdline", "rb") as stream:  # noqa: PTH123
                words = [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
        except OSError:
            return False
    # Both end in the command's own words; before those, the module is the last of Python's.
    module = words[: max(len(words) - len(sys.argv) + 1, 0)][-1:]
    names = ("awaken", "awaken.__main__")
    return bool(module) and (module[0] in names or (module[0].startswith("-") and module[0].endswith(names)))


if _is_run_as_a_command():
    _leave_out_the_current_folder()

# Only now: these files may be in the current folder, too.
import pathlib  # noqa: E402
import shutil  # noqa: E402

if sys.version_info < (3, 9):  # noqa: UP036
    if sys.argv[0] in ("-m", "awaken"):  # for a command (start.py), and not imported by a program
        start = str(pathlib.Path(__file__).absolute().with_name("start.py"))
        for minor in range(30, 8, -1):
            newer = shutil.which("python3.%d" % minor)  # noqa: UP031
            if newer is not None:
                os.execv(newer, [newer, "-I", start, *sys.argv[1:]])
    sys.stderr.write(
        "awaken: this command needs Python 3.9 or newer, and %s is %d.%d.%d: put the folder of a newer one first in "  # noqa: UP031
        "PATH\n" % ((sys.executable,) + tuple(sys.version_info[:3]))  # noqa: RUF005
    )
    sys.exit(126)
