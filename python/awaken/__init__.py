"""Awaken makes any MPI GPU-aware.

MPI programs need nothing of this package: they are run by the native command `awaken exec`. The package holds the
commands that are written in Python (`awaken COMMAND`, or `python -m awaken COMMAND`).
"""

# This file comes before all others of the package, and must be understood by each Python 3 that a cluster's `python3`
# may be, so that an old one is told and not left to a traceback. So: no annotations, no newer syntax.
import os
import pathlib
import shutil
import sys

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
