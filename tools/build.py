# SPDX-License-Identifier: Apache-2.0
"""Builds a preset with CMake and Ninja, and installs it into .venv.

Two commands may want the same build folder at a time. A build has it for itself, and tests share it (tests/progress.py
takes the same lock). A command that finds nothing to build waits for nobody.
"""

from __future__ import annotations

import argparse
import fcntl
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
INSTALLED = VENV / ".setup" / "installation.json"
"""The preset of the last installation, and its files, so that the next one removes those that are no more."""


def run(command: Sequence[str | Path], *, quiet: bool = False, environment: dict[str, str] | None = None) -> None:
    """Runs a command; a quiet one shows its output when it fails. Ends this program with the command's status then."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        if quiet:
            print(done.stdout, end="", flush=True)
        sys.exit(f"build: `{' '.join(map(str, command))}` failed with status {done.returncode}: see above")


@contextmanager
def lock_of(build: Path) -> Iterator[None]:
    """Has the build folder alone."""
    build.parent.mkdir(parents=True, exist_ok=True)
    with build.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"==> waiting: tests or another build use {build.relative_to(ROOT)}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_up_to_date(build: Path, targets: Sequence[str]) -> bool:
    if not (build / "build.ninja").exists():
        return False
    done = subprocess.run(
        ["ninja", "-C", str(build), "-n", *targets], capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode == 0 and "no work to do" in done.stdout


def is_configured(build: Path, definitions: Sequence[str]) -> bool:
    """Whether the build folder has all these definitions (-DNAME=VALUE). CMake itself sees to changed files."""
    if not (build / "build.ninja").exists():
        return False
    cached = {}
    for line in (build / "CMakeCache.txt").read_text(errors="replace").splitlines():
        name, colon, rest = line.partition(":")
        if colon:
            cached[name] = rest.partition("=")[2]
    wanted = (word.removeprefix("-D").partition("=") for word in definitions)
    return all(cached.get(name.partition(":")[0]) == value for name, _, value in wanted)


def build_targets(build: Path, targets: Sequence[str], jobs: int, definitions: Sequence[str]) -> None:
    known = is_configured(build, definitions)
    if known and is_up_to_date(build, targets):
        print(f"==> {build.relative_to(ROOT)} is up to date", flush=True)
        return
    with lock_of(build):
        if not known:
            print(f"==> configuring {build.relative_to(ROOT)}", flush=True)
            run(["cmake", "--preset", build.name, *definitions], quiet=True)
        print(
            f"==> building {', '.join(targets) or 'everything'} in {build.relative_to(ROOT)} ({jobs} jobs)", flush=True
        )
        run(["ninja", "-C", build, f"-j{jobs}", *targets])


def same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return other.exists() and filecmp.cmp(one, other, shallow=False) and one.stat().st_mode == other.stat().st_mode


def replace(source: Path, target: Path) -> None:
    """Puts a file in the place of another in one step, so that the name always leads to one of the two."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    shutil.copy2(source, fresh, follow_symlinks=False)
    fresh.replace(target)


def install(build: Path, *, first_look: bool) -> None:
    """Installs into .venv. What is there stays usable meanwhile; what is shipped is not replaced for a first look."""
    before = json.loads(INSTALLED.read_text()) if INSTALLED.exists() else {"preset": build.name, "files": []}
    if first_look and before["preset"] != build.name:
        print(f"==> {VENV.relative_to(ROOT)} keeps what build/{before['preset']} has installed", flush=True)
        return
    with lock_of(build), tempfile.TemporaryDirectory(dir=build) as folder:
        stage = Path(folder)
        run(["cmake", "--install", build, "--prefix", VENV], quiet=True, environment={"DESTDIR": folder})
        staged = stage / VENV.relative_to("/")
        names = sorted(
            str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_symlink() or path.is_file()
        )
        changed = [name for name in names if not same(staged / name, VENV / name)]
        for name in changed:
            replace(staged / name, VENV / name)
    for name in set(before["files"]) - set(names):
        (VENV / name).unlink(missing_ok=True)
    INSTALLED.parent.mkdir(parents=True, exist_ok=True)
    INSTALLED.write_text(json.dumps({"preset": build.name, "files": names}))
    print(f"==> installed into {VENV.relative_to(ROOT)} ({len(changed)} of {len(names)} files were new)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="what to build (default: everything)")
    parser.add_argument("--preset", default="release", help="of CMakePresets.json (default: release)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--tests", action="store_true", help="with the tests; a build folder that has them keeps them")
    parser.add_argument("--first-look", action="store_true", help="a new build folder is made for MPICH's ABI alone")
    parser.add_argument("--install", action="store_true", help="install into .venv afterwards")
    parser.add_argument("--cmake", default="", metavar="-DNAME=VALUE ...", help="for CMake")
    options = parser.parse_args()
    build = ROOT / "build" / options.preset
    definitions = options.cmake.split()
    fresh = not (build / "build.ninja").exists()
    if options.tests or fresh:
        definitions.insert(0, f"-DAWAKEN_BUILD_TESTS={'ON' if options.tests else 'OFF'}")
    if options.tests or options.first_look:
        if fresh:
            definitions.insert(0, "-DAWAKEN_PRECOMPILE_KERNELS=OFF")  # which takes minutes
    else:
        definitions.insert(0, "-DAWAKEN_PRECOMPILE_KERNELS=ON")
    if not options.first_look:
        definitions.insert(0, "-DAWAKEN_ONLY=")
    elif fresh:
        definitions.insert(0, "-DAWAKEN_ONLY=mpich")
    try:
        build_targets(build, options.targets, options.jobs, definitions)
        if options.install:
            install(build, first_look=options.first_look)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
