# SPDX-License-Identifier: Apache-2.0
"""What was found out about MPIs: whether each takes device memory by itself.

The file has one line per MPI library and kind of GPU, of five fields with blanks between them:

    KEY VENDOR ANSWER TIME [with:SWITCHES] NAME

KEY is "build-id:" and the GNU build id of the library, or, where it has none, "file:" with its size, modification time
(whole seconds) and path, joined by ":", blanks in the path written as %20. VENDOR is "cuda" or "hip"; of emulated GPUs
"cuda-emulated" or "hip-emulated". ANSWER is "yes" (calls on device memory gave the right data) or "no". TIME is UTC in
ISO 8601. SWITCHES are the variables that change an MPI's answer, as far as they were set: NAME=VALUE, joined by
commas. NAME is the rest of the line. The last line with a key and vendor counts; lines that begin with # are comments.

The library (src/base/doctor_notes.cpp) reads the file and uses an answer only with the same SWITCHES, and only of a
file that nobody but its owner may write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from awaken import input_files, output_files

LARGEST_FILE = 64 << 20
HEADER = "# Which MPIs take device memory by themselves, as `awaken doctor` found. May be removed at any time.\n"

GPU_SWITCHES = (
    "MPICH_GPU_SUPPORT_ENABLED",
    "MPIR_CVAR_ENABLE_GPU",
    "MV2_USE_CUDA",
    "MV2_USE_ROCM",
    "MVP_ENABLE_GPU",
    "I_MPI_OFFLOAD",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "OMPI_MCA_accelerator",
    "OMPI_MCA_opal_cuda_support",
    "UCX_TLS",
    "AWAKEN_UCX",
    "AWAKEN_TEST_FAULTS",
)
"""In this order; the same names are in src/base/doctor_notes.cpp."""


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
        # One library has many names: those of the links to it, and of the links to its folders.
        real = Path(path).resolve(strict=True)
        status = real.stat()
    except OSError:
        return ""
    return f"file:{status.st_size}:{int(status.st_mtime)}:{str(real).replace(' ', '%20')}"


def gpu_switches(environment: Mapping[str, str]) -> str:
    """The SWITCHES that are set, as the file has them; empty when none is."""
    values = [
        f"{name}={quote(environment[name], safe='/:^', errors='surrogateescape')}"
        for name in GPU_SWITCHES
        if name in environment
    ]
    return f"with:{','.join(values)}" if values else ""


def read(file: Path) -> dict[tuple[str, str], bool]:
    """Answers by key and vendor. Lines that are not understood are passed over, a missing file is an empty one."""
    answers: dict[tuple[str, str], bool] = {}
    with contextlib.suppress(OSError):
        for line in input_files.read_text(file, LARGEST_FILE).splitlines():
            fields = line.split(maxsplit=4)
            if not line.startswith("#") and len(fields) >= 4 and fields[2] in ("yes", "no"):
                answers[fields[0], fields[1]] = fields[2] == "yes"
    return answers


def write(file: Path, key: str, vendor: str, answer: bool, name: str, switches: str = "") -> None:
    """Puts an answer in the place of an earlier one. Raises OSError where the file cannot be written.

    `switches`: gpu_switches() of the environment in which the answer was found.
    """
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = [key, vendor, "yes" if answer else "no", when, switches, *name.split()]
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(file.with_name(f"{file.name}.lock")):
        lines: list[str] = []
        with contextlib.suppress(OSError):
            # What others wrote is kept byte by byte, whatever its encoding (NAME and PATH are theirs to choose).
            text = input_files.read_text(file, LARGEST_FILE, errors="surrogateescape")
            lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        kept = [line for line in lines if line.split(maxsplit=2)[:2] != [key, vendor]]
        kept.append(" ".join(word for word in words if word))
        # Whatever the umask: what others may write is not believed.
        with output_files.replacing(file, mode=0o600, errors="surrogateescape") as stream:
            stream.write(HEADER + "\n".join(kept) + "\n")


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Nobody else writes meanwhile, or the answer of one of two doctors would be lost. The lock is on a file beside the
    answers, which are replaced; it stays there, empty. Raises OSError where it cannot be opened."""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        # Homes on some network file systems have no locks: an answer is lost there, and not the run.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
