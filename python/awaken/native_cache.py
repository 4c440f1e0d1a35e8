"""What was found out about MPIs: whether each takes device memory by itself.

The file has one line per MPI library and kind of GPU, of five fields with blanks between them:

    KEY VENDOR ANSWER TIME NAME

KEY is "build-id:" and the GNU build id of the library, or, where it has none, "file:" with its size, modification time
(whole seconds) and path, joined by ":", blanks in the path written as %20. VENDOR is "cuda" or "hip"; of emulated GPUs
"cuda-emulated" or "hip-emulated". ANSWER is "yes" (calls on device memory gave the right data) or "no". TIME is UTC in
ISO 8601. NAME is the rest of the line. The last line with a key and vendor counts; lines that begin with # are
comments.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

HEADER = "# Which MPIs take device memory by themselves, as `awaken doctor` found. May be removed at any time.\n"


def cache_file(environment: Mapping[str, str]) -> Path | None:
    """$XDG_CACHE_HOME/awaken/native-gpu, else ~/.cache/awaken/native-gpu; None where there is no home."""
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "awaken" / "native-gpu"
    if home := environment.get("HOME"):
        return Path(home) / ".cache" / "awaken" / "native-gpu"
    return None


def library_key(build_id: str, path: str) -> str:
    """KEY of a library; empty when it has no build id and its file cannot be looked at."""
    if build_id:
        return f"build-id:{build_id}"
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    return f"file:{status.st_size}:{int(status.st_mtime)}:{path.replace(' ', '%20')}"


def read(file: Path) -> dict[tuple[str, str], bool]:
    """Answers by key and vendor. Lines that are not understood are passed over, a missing file is an empty one."""
    answers: dict[tuple[str, str], bool] = {}
    with contextlib.suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            fields = line.split(maxsplit=4)
            if not line.startswith("#") and len(fields) >= 4 and fields[2] in ("yes", "no"):
                answers[fields[0], fields[1]] = fields[2] == "yes"
    return answers


def write(file: Path, key: str, vendor: str, answer: bool, name: str) -> None:
    """Puts an answer in the place of an earlier one. Raises OSError where the file cannot be written."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    kept = [line for line in lines if line.split(maxsplit=2)[:2] != [key, vendor]]
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept.append(f"{key} {vendor} {'yes' if answer else 'no'} {when} {' '.join(name.split())}")
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_text(HEADER + "\n".join(kept) + "\n")
    unfinished.replace(file)
