"""The files that a command is asked to write: whether that is possible is found out before minutes are spent, and an
earlier file stays until the new one is complete."""

from __future__ import annotations

import os
from pathlib import Path

from awaken.plain_text import LONGEST_MESSAGE, clean


class Misuse(Exception):
    """The command line or the surroundings are wrong, or what is asked for cannot be had; ends with status 2."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text, LONGEST_MESSAGE))  # it quotes words of the user


def check(name: str) -> None:
    """Raises Misuse where the file cannot be written. Changes nothing."""
    path = Path(name)
    folder = path.absolute().parent
    why = ""
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"there is no folder {folder}"
    elif path.exists() and not os.access(path, os.W_OK):
        why = "it may not be changed"
    elif not special(path) and not os.access(folder, os.W_OK):
        why = f"nothing may be written to {folder}"
    if why:
        raise Misuse(f"{name} cannot be written ({why}): choose another file")


def write(name: str, text: str) -> None:
    """The whole text or nothing. Names of files in it may be no text: what has no character is written as \\udcNN.
    Raises Misuse."""
    path = Path(name)
    try:
        if special(path):
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        path = path.resolve()
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Misuse(f"{name} cannot be written ({error.strerror}): choose another file") from error


def special(path: Path) -> bool:
    """Whether it is a pipe, a terminal or /dev/null, which nothing may take the place of."""
    return path.exists() and not path.is_file()
