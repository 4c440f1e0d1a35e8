# SPDX-License-Identifier: Apache-2.0
"""The files that a command is asked to read: regular ones only, since a pipe may never say anything and a device never
end. Whatever the user names is looked at through this module: what cannot be looked at (a name that is too long, a
folder that may not be searched) is nothing here, and the reason is that of open_regular() or files_in().
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from pathlib import Path
from typing import BinaryIO

KINDS = (
    (stat.S_ISDIR, "this is a folder", "name the files in it"),
    (stat.S_ISFIFO, "it is a pipe, not a regular file", "write its output to a file first"),
    (stat.S_ISSOCK, "it is a socket, not a regular file", "write its output to a file first"),
    (lambda _: True, "it is a device, not a regular file", "name a file"),
)


class NoRegularFile(Exception):
    """What the path is instead, and what to do."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}: {remedy}")
        self.cause, self.remedy = cause, remedy


def is_there(path: Path) -> bool:
    """Whether the path can be found to name something."""
    with contextlib.suppress(OSError):
        return bool(path.stat())
    return False


def is_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(path.stat().st_mode)
    return False


def files_in(folder: Path, *patterns: str) -> list[Path]:
    """What matches the first pattern, in order of name, then the second. Raises OSError."""
    names = sorted(path.name for path in folder.iterdir())
    return [folder / name for pattern in patterns for name in fnmatch.filter(names, pattern)]


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NoRegularFile(*next(told for is_kind, *told in KINDS if is_kind(status.st_mode)))


def open_regular(path: Path) -> BinaryIO:
    """Opens it for reading. Raises OSError, and NoRegularFile without having opened anything else."""
    _check(path.stat())  # before it is opened, since some devices do something when they are
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")
    try:
        _check(os.fstat(stream.fileno()))  # something else may have taken its place
    except BaseException:
        stream.close()
        raise
    return stream


def read_text(path: Path, most_bytes: int, errors: str = "replace") -> str:
    """A small file of ours. Raises OSError, also where it is none."""
    try:
        with open_regular(path) as stream:
            return stream.read(most_bytes).decode("utf-8", errors)
    except NoRegularFile as error:
        raise OSError(str(error)) from error
