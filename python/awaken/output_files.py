# SPDX-License-Identifier: Apache-2.0
"""The files that a command is asked to write: whether that is possible is found out before minutes are spent, and an
earlier file stays until the new one is complete."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from awaken.plain_text import LONGEST_MESSAGE, clean


class Misuse(Exception):
    """The command line or the surroundings are wrong, or what is asked for cannot be had; ends with status 2."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text, LONGEST_MESSAGE))  # it quotes words of the user


def check(name: str) -> None:
    """Raises Misuse where the file cannot be written. Changes nothing."""
    try:
        why = _hindrance(name)
    except OSError as error:
        why = error.strerror
    if why:
        raise Misuse(f"{name} cannot be written ({why}): choose another file")


def _hindrance(name: str) -> str | None:
    """Raises OSError, too."""
    path = _target(name)
    kind, folder = _kind(path), path.parent
    if stat.S_ISDIR(kind):
        return "it is a folder"
    if kind and not os.access(path, os.W_OK):
        return "it may not be changed"
    if not stat.S_ISDIR(_kind(folder)):
        return f"there is no folder {folder.absolute()}"
    if stat.S_IFMT(kind) in (0, stat.S_IFREG) and not os.access(folder, os.W_OK):
        return f"nothing may be written to {folder.absolute()}"
    return None


def write(name: str, text: str) -> None:
    """The whole text or nothing. Names of files in it may be no text: what has no character is written as \\udcNN.
    Raises Misuse."""
    try:
        path = _target(name)
        with _special(path) if stat.S_IFMT(_kind(path)) not in (0, stat.S_IFREG) else replacing(path) as stream:
            stream.write(text)
    except OSError as error:
        raise Misuse(f"{name} cannot be written ({error.strerror}): choose another file") from error


def _target(name: str) -> Path:
    """Links stay, and what they lead to is written."""
    path = Path(name)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _kind(path: Path) -> int:
    """The st_mode, 0 where there is nothing. Raises OSError where that cannot be found out."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _special(path: Path) -> TextIO:
    """A pipe, a terminal or /dev/null, which nothing may take the place of. Nobody waits for a pipe's reader."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666, errors: str = "backslashreplace") -> Iterator[TextIO]:
    """A file that takes the place of `path` when the block is over, and of which nothing is left when the block raises.

    It lies beside `path`. Its name does not grow with that of `path`, which may be as long as names can be, and nobody
    can guess it: another user's link is not written through in /tmp. Raises OSError.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        part = f".awaken-{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, mode, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors=errors) as stream:
                yield stream
            os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise
    finally:
        os.close(folder)
