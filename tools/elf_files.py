# SPDX-License-Identifier: Apache-2.0
"""What the ELF files of a wheel need of the machine they run on."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

Version = tuple[int, ...]

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""The architecture of a wheel, as ELF names it."""

ALLOWED = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread))\.so\.\d+")
"""glibc's own libraries. All else that a file needs must be in the wheel."""


@dataclass(frozen=True)
class ElfFile:
    """One ELF file: its name in the wheel, its machine, the libraries it needs, and the newest GLIBC_x.y it needs."""

    name: str
    machine: str
    needed: tuple[str, ...]
    glibc: Version


def read(name: str, content: bytes) -> ElfFile:
    """Raises elftools' ELFError for what is no ELF file."""
    elf = ELFFile(io.BytesIO(content))
    needed: list[str] = []
    newest: Version = ()
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            needed += [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    found = re.fullmatch(r"GLIBC_([\d.]+)", version.name)
                    if found:
                        newest = max(newest, tuple(int(part) for part in found.group(1).split(".")))
    return ElfFile(name, elf["e_machine"], tuple(needed), newest)


def of_wheel(wheel: Path) -> Iterator[ElfFile]:
    """All ELF files of a wheel, in the order of their names."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            content = archive.read(name)
            if content.startswith(b"\x7fELF"):
                yield read(name, content)


def faults(files: list[ElfFile], architecture: str, oldest_glibc: Version) -> list[str]:
    """Why these files would not run on the architecture with that glibc, a sentence each; empty when they would."""
    if not files:
        return ["there is no ELF file in it"]
    own = {Path(file.name).name for file in files}
    found = []
    for file in files:
        if file.machine != MACHINES[architecture]:
            found.append(f"{file.name} is for {file.machine}, not for {architecture}")
        if file.glibc > oldest_glibc:
            found.append(f"{file.name} needs glibc {text(file.glibc)}, newer than {text(oldest_glibc)}")
        foreign = [name for name in file.needed if name not in own and not ALLOWED.fullmatch(name)]
        if foreign:
            found.append(f"{file.name} needs {', '.join(foreign)}, which is neither glibc's nor in the wheel")
    return found


def text(version: Version) -> str:
    return ".".join(map(str, version)) or "none"
