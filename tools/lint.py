# SPDX-License-Identifier: Apache-2.0
"""Checks the source's style: clang-format, ruff and mypy, and clang-tidy on the files of a build.

Exit status 1 when there is something to correct. clang-tidy remembers, by content, which files were clean, so that a
second run reads only what has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv" / "bin"
FOLDERS = ("include", "src", "emulator", "apps", "bench", "tests")
SOURCES = {".c", ".cc", ".cpp"}
HEADERS = {".h", ".hpp", ".inc"}
FORMATTED = SOURCES | {".h", ".hpp", ".hip"}
CHECKS = ("format", "ruff", "mypy", "tidy")


def files_with(suffixes: set[str]) -> list[Path]:
    return sorted(
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts
    )


def passes(title: str, command: Sequence[str | Path]) -> bool:
    """Runs a checker from .venv; shows its output only when it finds something."""
    print(f"==> {title}", flush=True)
    words = [str(TOOLS / command[0]), *map(str, command[1:])]
    done = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        print(done.stdout)
    return done.returncode == 0


def check_format(fix: bool) -> bool:
    files = files_with(FORMATTED)
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    return not files or passes(f"clang-format ({len(files)} files)", ["clang-format", "--style=file", *mode, *files])


def check_ruff(fix: bool) -> bool:
    checked = passes("ruff check", ["ruff", "check", "--no-cache", *(["--fix"] if fix else [])])
    formatted = passes("ruff format", ["ruff", "format", "--no-cache", *([] if fix else ["--check"])])
    return checked and formatted


def check_mypy(_fix: bool) -> bool:
    return passes("mypy", ["mypy", "--no-error-summary", "--cache-dir", ROOT / "build" / "mypy"])


def changed_since(commit: str) -> set[Path]:
    """Sources and headers that differ from the commit, and those that git does not know yet."""
    names: set[str] = set()
    for command in (["git", "diff", "--name-only", commit], ["git", "ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            sys.exit(f"lint: `{' '.join(command)}` failed: {done.stderr.strip()}")
        names |= set(done.stdout.splitlines())
    return {path for name in names if (path := ROOT / name).exists() and path.suffix in SOURCES | HEADERS}


def readers_of(changed: set[Path], sources: Sequence[Path]) -> list[Path]:
    """The changed sources, and for each changed header one source that includes it: the one of its name, or another."""
    chosen = {path for path in changed if path.suffix in SOURCES}
    texts = {path: path.read_text(errors="replace") for path in sources}
    for header in (path for path in changed if path.suffix in HEADERS):
        if header.with_suffix(".cpp") in texts:
            chosen.add(header.with_suffix(".cpp"))
            continue
        include = f'{header.parent.name}/{header.name}"'
        chosen |= set([path for path, text in texts.items() if include in text or f'"{header.name}"' in text][:1])
    return sorted(chosen & set(sources))


def check_tidy(since: str) -> bool:
    # A folder that is never built: in it, each file is compiled by itself.
    build = ROOT / "build" / "tidy"
    configure: list[str | Path] = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja"]
    configure += ["-DAWAKEN_UNITY=OFF", "-DAWAKEN_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    done = subprocess.run(list(map(str, configure)), cwd=ROOT, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        print(done.stdout + done.stderr)
        return False
    # The core is compiled once per MPI ABI; to read each file once is enough.
    entries = {
        (Path(entry["directory"]) / entry["file"]).resolve(): entry
        for entry in json.loads((build / "compile_commands.json").read_text())
    }
    files = [path for path in files_with(SOURCES) if path.resolve() in entries]
    if since:
        files = readers_of(changed_since(since), files)
    clean = build / "clean"
    clean.mkdir(exist_ok=True)
    (clean / "compile_commands.json").write_text(json.dumps([entries[path.resolve()] for path in files]))

    # A file's verdict holds as long as the file, every header of the project and the configuration are what they were.
    common = hashlib.sha256((ROOT / ".clang-tidy").read_bytes() + (ROOT / "tests" / ".clang-tidy").read_bytes())
    for header in files_with(HEADERS):
        common.update(header.read_bytes())

    def verdict(path: Path) -> Path:
        content = common.copy()
        content.update(str(path.relative_to(ROOT)).encode())
        content.update(path.read_bytes())
        return clean / content.hexdigest()

    todo = [path for path in files if not verdict(path).exists()]
    print(f"==> clang-tidy ({len(todo)} of {len(files)} files; the others have not changed)", flush=True)

    def tidy(path: Path) -> bool:
        command = [str(TOOLS / "clang-tidy"), "--quiet", "-p", str(clean), str(path)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode == 0:
            verdict(path).touch()
        else:
            print(done.stdout or done.stderr, flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return all(list(workers.map(tidy, todo)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"any of {', '.join(CHECKS)} (default: all)")
    parser.add_argument("--fix", action="store_true", help="correct what can be corrected (format and ruff only)")
    parser.add_argument("--since", default="", metavar="COMMIT", help="clang-tidy only on what has changed since then")
    arguments = parser.parse_args()
    unknown = set(arguments.checks) - set(CHECKS)
    if unknown:
        parser.error(f"there is no check {', '.join(sorted(unknown))}: use any of {', '.join(CHECKS)}")
    chosen = arguments.checks or (("format", "ruff") if arguments.fix else CHECKS)
    fix, since = bool(arguments.fix), str(arguments.since)
    functions = {"format": check_format, "ruff": check_ruff, "mypy": check_mypy}
    results = [check_tidy(since) if name == "tidy" else functions[name](fix) for name in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
