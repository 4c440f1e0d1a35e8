# SPDX-License-Identifier: Apache-2.0
"""Builds what a release consists of, in dist/: wheels, source archive, SHA256SUMS and a software bill of materials.

Each artefact that runs on this machine is installed into an empty environment and used, so that none is published that
does not work.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import wheels
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = wheels.ROOT
SBOM = "awaken.cdx.json"
SUMS = "SHA256SUMS"
TIME_LIMIT_S = 14400
"""Ends a hang alone: the source archive took 5 minutes by itself, and 15 on a busy machine."""


def version() -> str:
    """The version of the project, whose one place is CMakeLists.txt."""
    found = re.search(r"^project\(awaken VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    assert found is not None
    return found.group(1)


# --------------------------------------------------------------------------------------------------------- artefacts


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def checksums(files: Sequence[Path]) -> str:
    """What `sha256sum -c` reads."""
    return "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(files))


def macro(header: Path, name: str) -> int:
    found = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", header.read_text(errors="replace"), re.M)
    if found is None:
        sys.exit(f"release: {header} does not define {name}, so the version of what is built in is not known")
    return int(found.group(1))


def built_in(zig: Path, json_header: Path) -> list[Component]:
    """The code of others that is compiled into the programs: Zig's libc++ with its unwinder, and nlohmann-json."""
    llvm = macro(zig / "lib" / "libcxx" / "include" / "__config", "_LIBCPP_VERSION")
    llvm_version = f"{llvm // 10000}.{llvm // 100 % 100}.{llvm % 100}"
    parts = ("MAJOR", "MINOR", "PATCH")
    json_version = ".".join(str(macro(json_header, f"NLOHMANN_JSON_VERSION_{part}")) for part in parts)
    llvm_licence = LicenseExpression("Apache-2.0 WITH LLVM-exception")
    runtimes = ("libcxx", "libcxxabi", "libunwind", "compiler-rt")
    return [
        Component(name="nlohmann-json", version=json_version, type=ComponentType.LIBRARY,
                  licenses=[LicenseExpression("MIT")],
                  purl=PackageURL("github", "nlohmann", "json", f"v{json_version}")),
        *(Component(name=name, version=llvm_version, type=ComponentType.LIBRARY, licenses=[llvm_licence],
                    purl=PackageURL("github", "llvm", "llvm-project", f"llvmorg-{llvm_version}", subpath=name))
          for name in runtimes),
    ]  # fmt: skip


def bill_of_materials(release: str, files: Sequence[Path], parts: Sequence[Component]) -> str:
    """CycloneDX 1.6 as JSON: the release, its files with their SHA-256, and the code of others that is in them."""
    bom = Bom()
    awaken = Component(
        name="awaken", version=release, type=ComponentType.LIBRARY, purl=PackageURL("pypi", None, "awaken", release),
        bom_ref="awaken", licenses=[LicenseExpression("Apache-2.0")],
    )  # fmt: skip
    bom.metadata.component = awaken
    artefacts = [
        Component(name=file.name, version=release, type=ComponentType.FILE, bom_ref=file.name,
                  hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256(file))])
        for file in sorted(files)
    ]  # fmt: skip
    for component in (*artefacts, *parts):
        bom.components.add(component)
    bom.register_dependency(awaken, artefacts)
    for artefact in artefacts:
        # The source archive holds none of it.
        bom.register_dependency(artefact, parts if artefact.name.endswith(".whl") else [])
    text: str = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        sys.exit(f"release: the bill of materials is not valid CycloneDX: {fault}")
    return text


def source_archive(destination: Path) -> Path:
    """Of what is committed alone: a file that lies about in the tree is not published."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        wheels.run(["git", "clone", "--quiet", ROOT, tree])
        backend = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
        done = subprocess.run(
            [wheels.VENV / "bin" / "python", "-c", backend, folder],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{done.stdout}{done.stderr}\nrelease: the source archive cannot be made: see above")
        name = done.stdout.split()[-1]
        return Path(shutil.move(Path(folder) / name, destination / name))


# ------------------------------------------------------------------------------------------------------ installation


def environment_of(folder: Path) -> dict[str, str]:
    """Nothing of this environment but what pip needs to find packages."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    return {**kept, "HOME": str(folder), "PATH": f"{folder}/venv/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def check_installed(artefact: Path) -> float:
    """Installs an artefact into an empty environment, and runs a ring of device arrays and a benchmark with it.

    Returns the seconds from the empty folder to the last result. Ends this program when something fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = environment_of(folder)
        start = time.monotonic()

        def in_environment(*words: str | Path) -> str:
            done = subprocess.run(
                [str(word) for word in words], cwd=folder, env=environment, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIME_LIMIT_S, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                sys.exit(f"{done.stdout}\nrelease: {artefact.name}, installed, fails in `{' '.join(map(str, words))}`")
            return done.stdout

        in_environment(sys.executable, "-m", "venv", "venv")
        in_environment("venv/bin/python", "-m", "pip", "install", "--quiet", artefact, "mpich", "mpi4py", "numpy")
        job = ["venv/bin/mpiexec", "-n", "2", "venv/bin/awaken", "exec", "--emulate", "cuda:2", "--"]
        shutil.copy(ROOT / "apps" / "examples" / "ring.py", folder)
        ring = in_environment(*job, "venv/bin/python", "ring.py", "--arrays", "plain")
        latency = in_environment(*job, "venv/bin/osu_latency", "-m", "1:8", "D", "D")
        seconds = time.monotonic() - start
        if not re.search(r"^8\s+[\d.]+", latency, re.M):
            sys.exit(f"{latency}\nrelease: {artefact.name}: osu_latency prints no time for 8 bytes")
        print(f"    {artefact.name}: {ring.strip().splitlines()[-1]}", flush=True)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--destination", type=Path, default=ROOT / "dist", help="folder of the release (default: dist)")
    options = parser.parse_args()
    release, destination = version(), options.destination.resolve()
    destination.mkdir(parents=True, exist_ok=True)
    # Files of an earlier release would be published with the others.
    for pattern in ("awaken-*.whl", "awaken-*.tar.gz", SBOM, SUMS):
        for file in destination.glob(pattern):
            file.unlink()
    files = [wheels.build(architecture, destination) for architecture in wheels.ARCHITECTURES]
    print("==> source archive", flush=True)
    files.append(source_archive(destination))
    print("==> installing each into an empty environment", flush=True)
    for file in files:
        if file.suffix == ".whl" and not file.stem.endswith(platform.machine()):
            print(f"    {file.name}: not for this machine; its files were checked", flush=True)
            continue
        print(f"    ring and benchmark after {check_installed(file):.1f} s", flush=True)
    zig = Path(str(importlib.metadata.distribution("ziglang").locate_file("ziglang")))
    json_header = next((ROOT / "build" / "wheels").rglob("nlohmann/detail/abi_macros.hpp"))
    (destination / SBOM).write_text(bill_of_materials(release, files, built_in(zig, json_header)))
    (destination / SUMS).write_text(checksums([*files, destination / SBOM]))
    print(f"==> Awaken {release}: {', '.join(sorted(file.name for file in destination.iterdir()))}")


if __name__ == "__main__":
    main()
