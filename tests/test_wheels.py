# SPDX-License-Identifier: Apache-2.0
"""What `make wheels` and `make release` check of what they build, and with --long a whole release."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import harness
import pytest

sys.path.append(str(harness.ROOT / "tools"))

import elf_files
import wheels


def compiled(folder: Path, source: str, *options: str) -> bytes:
    """A shared library of this source."""
    file, library = folder / "source.c", folder / "library.so"
    file.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, file, *options], check=True, timeout=harness.HANG_S)
    return library.read_bytes()


@pytest.fixture
def machine() -> str:
    return os.uname().machine


def needs_version(folder: Path, version: str) -> bytes:
    """A library that needs a symbol of one version of glibc, in a stand-in for libc.so.6."""
    (folder / "versions.map").write_text(f"{version} {{ global: made_up; }};\n")
    libc = folder / "libc.so.6"
    (folder / "libc.c").write_text("int made_up(void) { return 0; }\n")
    script = f"-Wl,--version-script={folder / 'versions.map'},-soname,libc.so.6"
    command = ["cc", "-shared", "-fPIC", "-nostdlib", "-o", str(libc), str(folder / "libc.c"), script]
    subprocess.run(command, check=True, timeout=harness.HANG_S)
    return compiled(folder, "int made_up(void); int f(void) { return made_up(); }\n", "-nostdlib", str(libc))


def test_an_old_symbol_is_taken(tmp_path: Path, machine: str) -> None:
    file = elf_files.read("a.so", needs_version(tmp_path, "GLIBC_2.28"))
    assert file.glibc == (2, 28) and file.needed == ("libc.so.6",)
    assert elf_files.faults([file], machine, (2, 28)) == []


@pytest.mark.parametrize("version", ["GLIBC_2.29", "GLIBC_2.100", "GLIBC_2.28.1"])
def test_a_new_symbol_is_a_fault(version: str, tmp_path: Path, machine: str) -> None:
    file = elf_files.read("a.so", needs_version(tmp_path, version))
    (fault,) = elf_files.faults([file], machine, (2, 28))
    assert fault == f"a.so needs glibc {version.removeprefix('GLIBC_')}, newer than 2.28"


def test_a_library_of_others_is_a_fault(tmp_path: Path, machine: str) -> None:
    other = compiled(tmp_path, "int g(void) { return 1; }\n", "-nostdlib", "-Wl,-soname,libstdc++.so.6")
    (tmp_path / "libstdc++.so.6").write_bytes(other)
    content = compiled(
        tmp_path, "int g(void); int f(void) { return g(); }\n", "-nostdlib", str(tmp_path / "libstdc++.so.6")
    )
    mine = elf_files.read("data/a.so", content)
    (fault,) = elf_files.faults([mine], machine, (2, 28))
    assert fault == "data/a.so needs libstdc++.so.6, which is neither glibc's nor in the wheel"
    beside = elf_files.read("data/libstdc++.so.6", other)
    assert elf_files.faults([mine, beside], machine, (2, 28)) == []


def test_files_of_another_machine_are_a_fault(tmp_path: Path, machine: str) -> None:
    other = next(name for name in elf_files.MACHINES if name != machine)
    content = compiled(tmp_path, "int f(void) { return 1; }\n", "-nostdlib")
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("data/text.txt", "no program")
        archive.writestr("data/a.so", content)
    files = list(elf_files.of_wheel(wheel))
    assert [file.name for file in files] == ["data/a.so"]
    assert elf_files.faults(files, machine, (2, 28)) == []
    (fault,) = elf_files.faults(files, other, (2, 28))
    assert fault == f"data/a.so is for {elf_files.MACHINES[machine]}, not for {other}"
    assert elf_files.faults([], machine, (2, 28)) == ["there is no ELF file in it"]


def test_the_version_has_one_place() -> None:
    """CMakeLists.txt; what cannot read it there says the same."""
    cmake = (harness.ROOT / "CMakeLists.txt").read_text()
    found = re.search(r"^project\(awaken VERSION ([0-9.]+)", cmake, re.M)
    assert found is not None
    header = (harness.ROOT / "include" / "awaken" / "awaken.h").read_text()
    assert ".".join(re.findall(r"^#define AWAKEN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header, re.M)) == found.group(1)
    assert f"\n## [{found.group(1)}]" in (harness.ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {found.group(1)}\n" in (harness.ROOT / "CITATION.cff").read_text()


def test_an_unknown_architecture_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, harness.ROOT / "tools" / "wheels.py", "sparc"],
        capture_output=True, text=True, timeout=harness.HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "sparc: wheels are built for x86_64 and aarch64" in done.stderr


@pytest.mark.xdist_group("zig")
def test_zig_takes_all_options_of_the_build(machine: str) -> None:
    options = wheels.check_options(machine)
    assert "-std=c++20" in options["CXX"] and "-Wl,-z,nodelete" in options["link"], options
    assert "-O2" in options["CXX"] and "-O1" not in options["CXX"], "a quick build is not for others"


@pytest.mark.xdist_group("zig")
@pytest.mark.parametrize("target", ["awaken_core_mpich", "awaken_core_other_mpich"])
def test_clang_takes_what_gcc_takes(target: str, machine: str) -> None:
    """Messages, collectives and windows, which are templates for the most part."""
    wheels.check_options(machine)
    folder = harness.ROOT / "build" / "wheels" / machine / "options"
    assert wheels.check_sources(folder, target), f"nothing is compiled for {target}"


def test_a_source_that_clang_refuses_is_found(machine: str, tmp_path: Path) -> None:
    compiler = wheels.make_toolchain(tmp_path / "toolchain", machine).parent / "c++"
    source = tmp_path / "source.cpp"
    build = {"directory": str(tmp_path), "file": str(source), "command": f"{compiler} -O2 -o src/a.dir/x.o -c {source}"}
    (tmp_path / "compile_commands.json").write_text(json.dumps([build]))
    source.write_text("auto f = [] {}, g = f;\n")
    assert wheels.check_sources(tmp_path, "a") == [str(source)]
    assert wheels.check_sources(tmp_path, "b") == []
    # GCC takes it: each has a type of its own.
    source.write_text("auto f = [] {}, g = [] {};\n")
    with pytest.raises(SystemExit, match=re.escape(f"Clang refuses {source}")):
        wheels.check_sources(tmp_path, "a")


@pytest.mark.xdist_group("zig")
def test_a_wheel_holds_compiled_kernels(machine: str, tmp_path: Path) -> None:
    """What a wheel is made from installs them, with the kernels of both wheels in one folder; and a wheel is asked."""
    wheels.check_options(machine)
    build = harness.ROOT / "build" / "wheels" / machine / "options"
    assert "kernels.bin" in (build / "src" / "gpu" / "cmake_install.cmake").read_text()
    rules = (build / "build.ninja").read_text()
    assert re.search(rf"compile_kernels\.py .*--folder {harness.ROOT}/build/wheels/kernels\b", rules)
    assert re.search(r"^build all: phony .*\bsrc/all\b", rules, re.M)
    assert re.search(r"^build src/gpu/all: phony .*\bawaken_kernels\b", rules, re.M)

    wheel = tmp_path / "a.whl"
    for index, expected in (
        (b"AWAKEN KERNELS 1\nsm_70 a 1 1\nsm_70 b 1 1\ncompute_70 a 1 1\n\ncode", ["sm_70", "compute_70"]),
        (b"AWAKEN KERNELS 1\n\n", []),
        (None, []),
    ):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("awaken.data/data/lib/awaken/libawaken.so", "")
            if index is not None:
                archive.writestr("awaken.data/data/lib/awaken/kernels.bin", index)
        assert wheels.kernel_targets(wheel) == expected


@pytest.mark.parametrize("option", ["-Wl,-Bsymbolic-functions", "-Wl,--exclude-libs,ALL", "-fmade-up"])
def test_an_option_that_zig_refuses_is_found(option: str, machine: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=re.escape(option.removeprefix("-Wl,").partition(",")[0])):
        wheels.try_options("CXX", {option}, wheels.make_toolchain(tmp_path, machine).parent)


@pytest.mark.long
def test_release(tmp_path: Path) -> None:
    """`make release` in a clone: two wheels, the archive, true checksums, a bill of materials that names its files.

    The command itself installs what it made, and runs a ring of device arrays and a benchmark with it.
    """
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "--quiet", harness.ROOT, tree], check=True, timeout=harness.HANG_S)
    environment = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    done = subprocess.run(
        ["make", "release"], cwd=tree, capture_output=True, text=True, timeout=8 * harness.LONG_HANG_S, check=False,
        env={**environment, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS ring") == 2, done.stdout
    files = {file.name: file.read_bytes() for file in (tree / "dist").iterdir()}
    sums = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    built = sorted(name for name in files if name.endswith(".whl"))
    assert [re.sub(r"^awaken-[\d.]+-", "", name) for name in built] == [
        f"py3-none-manylinux_2_28_{architecture}.whl" for architecture in ("aarch64", "x86_64")
    ]
    for name in built:
        names = zipfile.ZipFile(io.BytesIO(files[name])).namelist()
        for part in (
            "lib/awaken/libawaken.so",
            "lib/awaken/kernels.bin",
            "scripts/awaken",
            "lib/awaken/emulator/libcuda.so.1",
            "share/man/man1/awaken.1",
            "share/bash-completion/completions/awaken",
            "osu_latency",
        ):
            assert any(entry.endswith(part) for entry in names), (name, part)
    bill = json.loads(files["awaken.cdx.json"])
    named = {component["name"] for component in bill["components"]}
    assert {*built, "libcxx", "nlohmann-json"} <= named
