# SPDX-License-Identifier: Apache-2.0
"""Files that others wrote, read with care: their size, their text, their numbers, and how to speak of what is wrong.

A log may be truncated, may hold another program's output between its rows, or may not be a log at all. Nothing in it is
trusted: names are cleaned of control characters and shortened, numbers must be finite and of a sensible size.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from awaken.input_files import NoRegularFile, open_regular
from awaken.plain_text import clean as clean

LARGEST_FILE_BYTES = 512 << 20
LONGEST_LINE = 10_000
MOST_NOTES = 20
LARGEST_NUMBER = 1e15
"""More microseconds than 30 years have, more GB/s than any machine has."""
SMALLEST_NUMBER = 1e-12
"""Numbers nearer to zero are taken for zero: no clock tells so few microseconds, and they would stretch a logarithmic
axis beyond what a float can say."""
LARGEST_SIZE = 1 << 60
NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+")
LINE_PREFIX = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d) )?"
    r"([ \t]*(\[\d+(,\d+)?\](<std(out|err)>)?:? ?|\d+: ))?"
)
"""What is put before each line and known by its form: the time (kubectl logs --timestamps), and by launchers the rank,
behind blanks where others have indented the lines or numbers are flush right: [0], [1,0]<stdout>: (Open MPI), 0: (srun
--label)."""
LABEL = re.compile(r"(?![ \t]*[0-9.]+[ \t])([ \t]*\S.{0,120}(?::|[\]>|](?=[ \t])|\t))[ \t]*")
"""Any label: host 0:, host:, [host], host |. Other lines may begin like that, too, so a label is only what stands
before one of LABELLED somewhere in the log. A row of numbers is no label, nor is a prompt ([root@host ~]#)."""
LABELLED = ("#", "Collective:", "Count ")
"""How lines begin that only benchmarks print."""
MOST_LABELS = 100
RULES = ("===", "---", "***", "~~~", "+++")
"""What frames a heading that a script prints before a run."""
LONGEST_HEADING = 200
NO_NAME = re.compile(
    r"(?<!\S)(?:\d{4}-\d\d-\d\d\S*|\d\d?:\d\d(?::\d\d\S*)?|(?:run|repetition|trial) \d+(?:/\d+)?"
    r"|osu_\w+|\w+_perf|\w+_perftest|IMB-\w+)(?!\S)",
    re.IGNORECASE,
)
"""What names no run in a heading: the date, the time, its number among equal ones, the program."""


class ReadError(Exception):
    """A file that cannot be read, with the place and what to do about it."""

    def __init__(self, place: str, cause: str, remedy: str) -> None:
        super().__init__(f"{place}: {cause}: {remedy}")


def number(word: str) -> float | None:
    """A number that a benchmark can have printed, else None: no sign, finite, below 10^15."""
    if len(word) > 40 or not NUMBER.fullmatch(word):
        return None
    value = float(word)
    return _rounded(value) if math.isfinite(value) and value < LARGEST_NUMBER else None


def _rounded(value: float) -> float:
    return value if abs(value) >= SMALLEST_NUMBER else 0.0


def size(word: str) -> int | None:
    """A message size in bytes, else None."""
    if not word.isascii() or not word.isdigit() or len(word) > 20:
        return None
    value = int(word)
    return value if value <= LARGEST_SIZE else None


def read_bytes(path: Path) -> bytes:
    """The whole file; ReadError where that cannot be had."""
    try:
        with open_regular(path) as stream:
            length = os.fstat(stream.fileno()).st_size
            # One byte more than is allowed tells of a file that has grown since.
            content = stream.read(LARGEST_FILE_BYTES + 1) if length <= LARGEST_FILE_BYTES else b""
        if max(length, len(content)) > LARGEST_FILE_BYTES:
            raise ReadError(
                str(path),
                f"it has {max(length, len(content))} bytes, more than {LARGEST_FILE_BYTES}",
                "cut it to the part with the results",
            )
        # Editors of Windows put a mark of UTF-8 before the text.
        return content.removeprefix(codecs.BOM_UTF8)
    except NoRegularFile as error:
        raise ReadError(str(path), error.cause, error.remedy) from error
    except OSError as error:
        raise ReadError(str(path), error.strerror or "it cannot be read", "check the name and its rights") from error


def without_remark(words: Sequence[str], *widths: int) -> Sequence[str] | None:
    """The words of a row that has as many as one of `widths`. A remark that somebody wrote behind them is left out: its
    first word is no number. None where the words are more or fewer."""
    for width in widths:
        if len(words) == width or (len(words) > width and number(words[width]) is None):
            return words[:width]
    return None


def heading(line: str) -> str | None:
    """The name that a line like "=== pair 0,1 ===" gives to the run after it, which may be none; else None."""
    words = line.strip(" \t#")
    rule = words[:3]
    if rule not in RULES or len(words) > LONGEST_HEADING or not (rule == "===" or words.endswith(rule)):
        return None
    words = words.strip(rule[0])
    return clean(" ".join(NO_NAME.sub(" ", words).split()).strip(",;: ")) if re.search(r"\w", words) else None


class Notes:
    """Remarks on parts of a file that were left out. Many of one file are counted, not listed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._remarks: list[str] = []
        self._more = 0

    def add(self, line: int, text: str) -> None:
        if len(self._remarks) < MOST_NOTES:
            self._remarks.append(f"{self._path}:{line}: {text}")
        else:
            self._more += 1

    def texts(self) -> list[str]:
        more = [f"{self._path}: {self._more} more remarks of this kind"] if self._more else []
        return [*self._remarks, *more]


class Log:
    """The lines of a text file, numbered from 1. What a launcher puts before each line is taken off."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = str(path)
        if b"\0" in content[:65536]:
            raise ReadError(self.path, "it is not text (it contains zero bytes)", "give the log as text or the JSON")
        self.text = content.decode("utf-8", errors="replace")
        self.cut_off = bool(content) and not content.endswith((b"\n", b"\r"))
        """Whether the last line has no end: its last number may lack digits."""
        self.heading = ""
        """The last one before the line that lines() gave last."""
        labels = {_shape(label[1]): None for mark in LABELLED for label in self._labels_before(mark)}
        self._prefix = re.compile(
            rf"(?:{'|'.join([*list(labels)[:MOST_LABELS], LINE_PREFIX.pattern])})(?:[ \t]*(?=#))?"
        )

    def _labels_before(self, mark: str) -> Iterator[re.Match[str]]:
        return filter(None, (LABEL.fullmatch(line.partition(mark)[0]) for line in self._lines_with(mark)))

    def some_line(self, mark: str, test: Callable[[str], object]) -> bool:
        """Whether any line that contains `mark` passes the test. Each is looked at once, and only if it is no longer
        than LONGEST_LINE: a log's kind must not take longer to tell than the log takes to read."""
        return any(test(self._unmarked(line)) for line in self._lines_with(mark))

    def _lines_with(self, mark: str) -> Iterator[str]:
        at = self.text.find(mark)
        while at >= 0:
            begin, end = self.text.rfind("\n", 0, at) + 1, self.text.find("\n", at)
            end = end if end >= 0 else len(self.text)
            if end - begin <= LONGEST_LINE:
                yield self.text[begin:end]
            at = self.text.find(mark, end)

    def lines(self, notes: Notes) -> Iterator[tuple[int, str]]:
        self.heading = ""
        last = self.text.count("\n") + 1
        for index, raw in enumerate(self.text.split("\n"), 1):
            if index == last and self.cut_off:
                if raw.strip():
                    notes.add(index, "the file ends within this line, which is left out")
                return
            if len(raw) > LONGEST_LINE:
                notes.add(index, f"the line has {len(raw)} characters, and is left out")
                continue
            line = self._unmarked(raw)
            named = heading(line)
            self.heading = self.heading if named is None else named
            yield index, line

    def _unmarked(self, line: str) -> str:
        line = line.rstrip("\r")
        prefix = self._prefix.match(line)
        return line[prefix.end() :] if prefix else line

    def summary(self) -> str:
        """What kinds of lines there are, and one that could have been a result: the first with numbers, or else the
        first that is no comment."""
        kinds: dict[str, list[tuple[int, str]]] = {"begin with a number": [], "are other text": [], "are comments": []}
        for index, line in self.lines(Notes(self.path)):
            words = line.split()
            if words:
                kind = 2 if words[0].startswith("#") else 0 if number(words[0]) is not None else 1
                kinds[list(kinds)[kind]].append((index, line))
        told = [f"{len(lines)} {kind}" for kind, lines in kinds.items() if lines]
        first = next((lines[0] for lines in kinds.values() if lines), None)
        return f"of its lines {', '.join(told)}; line {first[0]} is '{clean(first[1], 80)}'" if first else "it is blank"


def _shape(label: str) -> str:
    """An expression for labels that differ from this one in their numbers, which are ranks, hosts or times."""
    parts = re.split(r"([0-9]+|[ \t]+)", label)
    return (
        "".join(
            "[0-9]+" if part[:1].isdigit() else r"[ \t]+" if part[:1] in (" ", "\t") else re.escape(part)
            for part in parts
        )
        + r"[ \t]?"
    )


# ---------------------------------------------------------------------------------------------------------------- JSON


def load_json(path: Path, content: bytes) -> Any:
    """The value of a JSON file. NaN and infinities, which JSON does not have, are refused."""

    def refuse(constant: str) -> None:
        raise ReadError(str(path), f"it contains {constant}, which is not a number in JSON", "write the file again")

    try:
        return json.loads(content.decode("utf-8", errors="replace"), parse_constant=refuse)
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}"
        raise ReadError(place, f"it is not JSON ({error.msg}, column {error.colno})", "was it cut off?") from error
    except RecursionError as error:
        raise ReadError(str(path), "its lists are nested too deeply", "give a file of Awaken's") from error
    except ValueError as error:
        raise ReadError(str(path), f"it is not JSON ({clean(str(error))})", "write the file again") from error


class Value:
    """A part of a JSON file that knows where it stands, for messages like "a.json: runs[0].ranks: is not a number"."""

    def __init__(self, json_value: Any, file: str, place: str = "") -> None:
        self.raw = json_value
        self._file = file
        self._place = place

    def refuse(self, why: str) -> ReadError:
        where = f"{self._file}: {self._place}" if self._place else self._file
        return ReadError(where, why, "give the file as it was written")

    def get(self, key: str) -> Value:
        """A member; a Value of None where it is missing."""
        if not isinstance(self.raw, dict):
            raise self.refuse("is not an object")
        return Value(self.raw.get(key), self._file, f"{self._place}.{key}" if self._place else key)

    def first(self, *keys: str) -> Value:
        """The first of several names of a member that is there."""
        for key in keys:
            if isinstance(self.raw, dict) and self.raw.get(key) is not None:
                return self.get(key)
        return self.get(keys[0])

    def members(self) -> Iterator[tuple[str, Value]]:
        """The members of an object; none where it is missing."""
        if self.raw is None:
            return
        if not isinstance(self.raw, dict):
            raise self.refuse("is not an object")
        for key in self.raw:
            yield clean(key), self.get(key)

    def elements(self) -> Iterator[Value]:
        """The elements of a list; none where it is missing."""
        if self.raw is None:
            return
        if not isinstance(self.raw, list):
            raise self.refuse("is not a list")
        for index, element in enumerate(self.raw):
            yield Value(element, self._file, f"{self._place}[{index}]")

    @property
    def missing(self) -> bool:
        return self.raw is None

    @property
    def is_object(self) -> bool:
        return isinstance(self.raw, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.raw, list)

    def text(self, default: str = "") -> str:
        """A text in one line. Numbers and truth values are texts too; objects and lists are not."""
        if self.raw is None:
            return default
        if isinstance(self.raw, bool):
            return "yes" if self.raw else "no"
        if isinstance(self.raw, (str, int, float)):
            return clean(str(self.raw), longest=2000)
        raise self.refuse("is not a text")

    def number(self) -> float:
        found = self.number_or_none()
        if found is None:
            raise self.refuse("is missing")
        return found

    def number_or_none(self) -> float | None:
        if self.raw is None:
            return None
        if isinstance(self.raw, bool) or not isinstance(self.raw, (int, float)):
            raise self.refuse("is not a number")
        if not -LARGEST_NUMBER < self.raw < LARGEST_NUMBER:
            raise self.refuse("is out of range")
        return _rounded(float(self.raw))

    def integer(self, default: int | None = None) -> int:
        found = self.integer_or_none()
        if found is None:
            if default is None:
                raise self.refuse("is missing")
            return default
        return found

    def integer_or_none(self) -> int | None:
        if self.raw is None:
            return None
        if isinstance(self.raw, bool) or not isinstance(self.raw, int):
            raise self.refuse("is not a whole number")
        if not 0 <= self.raw <= 1 << 64:
            raise self.refuse("is out of range")
        return self.raw
