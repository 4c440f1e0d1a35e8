# SPDX-License-Identifier: Apache-2.0
"""What is installed works from outside: linking with pkg-config and CMake, a build for a cluster's own MPI, a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import harness
import pytest

pytestmark = pytest.mark.skipif(harness.sanitizer() != "", reason="instrumented libraries need an instrumented program")

PROGRAM = r"""
#include <awaken/awaken.h>
#include <mpi.h>
#include <stdio.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuMemcpyDtoH_v2(void*, unsigned long long, size_t);
int cuMemcpyHtoD_v2(unsigned long long, const void*, size_t);

int main(int argc, char** argv) {
    void* context = 0;
    unsigned long long device = 0;
    int rank = 0, size = 0, value = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    if (cuMemAlloc_v2(&device, sizeof value)) return 3;
    value = rank + 1;
    cuMemcpyHtoD_v2(device, &value, sizeof value);
    MPI_Allreduce(MPI_IN_PLACE, (void*)device, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    cuMemcpyDtoH_v2(&value, device, sizeof value);
    if (rank == 0) printf("sum %d version %s\n", value, awaken_version());
    MPI_Finalize();
    return value == size * (size + 1) / 2 ? 0 : 1;
}
"""
"""Device memory in an MPI call, from a C program that calls Awaken's own interface too."""

STREAMS = r"""
#include <awaken/mpix_stream.h>
#include <stdio.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuMemcpyDtoH_v2(void*, unsigned long long, size_t);
int cuMemcpyHtoD_v2(unsigned long long, const void*, size_t);
int cuStreamCreate(void**, unsigned);
int cuStreamSynchronize(void*);

int main(int argc, char** argv) {
    void *context = 0, *stream = 0;
    unsigned long long device = 0;
    int rank = 0, size = 0, value = 0;
    MPI_Info info;
    MPIX_Stream queue;
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    if (cuMemAlloc_v2(&device, sizeof value) || cuStreamCreate(&stream, 0)) return 3;
    MPI_Info_create(&info);
    MPI_Info_set(info, "type", "cudaStream_t");
    MPIX_Info_set_hex(info, "value", &stream, sizeof stream);
    MPIX_Stream_create(info, &queue);
    MPI_Info_free(&info);
    MPIX_Stream_comm_create(MPI_COMM_WORLD, queue, &comm);
    value = rank + 1;
    cuMemcpyHtoD_v2(device, &value, sizeof value);
    MPIX_Allreduce_enqueue(MPI_IN_PLACE, (void*)device, 1, MPI_INT, MPI_SUM, comm);
    cuStreamSynchronize(stream);
    cuMemcpyDtoH_v2(&value, device, sizeof value);
    if (rank == 0) printf("sum %d version %s\n", value, "none");
    MPI_Comm_free(&comm);
    MPIX_Stream_free(&queue);
    MPI_Finalize();
    return value == size * (size + 1) / 2 ? 0 : 1;
}
"""
"""A sum that a stream orders. MPI_Init without a word of threads: the layer asks for them."""

AS_NEEDED = "-Wl,--as-needed"
"""The default of some compilers: libraries of which nothing is used are left out."""


def command(*words: str | Path, timeout_s: float = harness.HANG_S, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**harness.clean_environment(), **(environment or {})},
        check=False,
    )
    assert done.returncode == 0, f"$ {' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def libraries_of(program: Path) -> str:
    """Those that the loader is told to load, in order."""
    dynamic = command(tool("readelf"), "-d", program)
    return " ".join(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build under test, installed into a folder that it was not configured for."""
    folder = tmp_path_factory.mktemp("prefix") / "a prefix"
    # The build keeps the list of its last installation, which is the user's.
    kept = harness.build_dir() / "install_manifest.txt"
    with harness.alone("install"):
        before = kept.read_bytes() if kept.exists() else None
        command(tool("cmake"), "--install", harness.build_dir(), "--prefix", folder)
        shutil.copy(kept, folder.parent)
        if before is not None:
            kept.write_bytes(before)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "program.c"
    file.write_text(PROGRAM)
    return file


@pytest.fixture(params=["program", "streams"])
def either_source(source: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "streams":
        source.write_text(STREAMS)
    return source


def check_run(mpi: harness.Mpi, program: Path, prefix: Path) -> None:
    emulator = prefix / "lib" / "awaken" / "emulator"
    output = command(
        "timeout", str(harness.HANG_S), mpi.mpiexec, *mpi.arguments, "-n", "2", program,
        environment={"AWAKEN_EMULATE": "cuda:2", "LD_LIBRARY_PATH": str(emulator), **mpi.environment},
    )  # fmt: skip
    assert "sum 3 version " in output


def test_what_the_demo_builds_can_be_installed() -> None:
    """`make demo` builds a part, and installs it: an installation needs nothing that the target leaves out."""
    build = harness.build_dir()
    rules = "".join(file.read_text() for file in build.rglob("cmake_install.cmake"))
    required: set[str] = set()
    for optional, files in re.findall(r"^ *file\(INSTALL [^)]* TYPE \w+( OPTIONAL)? FILES ([^)]*)\)", rules, re.M):
        if not optional:
            required.update(re.findall(rf'"{re.escape(str(build))}/([^"]*)"', files))
    assert {"bin/awaken", "lib/awaken/libawaken.so", "lib/awaken/bench/awaken-bench"} <= required
    made = {line.split(":")[0] for line in command(tool("ninja"), "-C", build, "-t", "targets", "all").splitlines()}
    inputs = set(command(tool("ninja"), "-C", build, "-t", "query", "demo").split())
    # A first build of the demo has none (AWAKEN_PRECOMPILE_KERNELS).
    missing = {file for file in (required & made) - inputs if not file.endswith("kernels.bin")}
    assert not missing
    assert "--first-look demo --install" in command("make", "-n", "-C", harness.ROOT, "demo")


def test_the_list_for_uninstalling_has_all(prefix: Path) -> None:
    listed = set((prefix.parent / "install_manifest.txt").read_text().splitlines())
    there = {str(path) for path in prefix.rglob("*") if not path.is_dir() and path.suffix != ".pyc"}
    assert str(prefix / "lib" / "libawaken.so") in there
    assert there <= listed, sorted(there - listed)


def test_shells_and_man_find_their_files(prefix: Path) -> None:
    share = prefix / "share"
    pages = [path.name for path in (share / "man" / "man1").iterdir()]
    assert sorted(pages) == sorted(path.name for path in (harness.ROOT / "docs" / "man").iterdir())
    for file in ("zsh/site-functions/_awaken", "fish/vendor_completions.d/awaken.fish"):
        assert "awaken completion" in (share / file).read_text()
    script = f'source "{share}/bash-completion/completions/awaken"; COMP_WORDS=(awaken doc) COMP_CWORD=1; _awaken'
    environment = {"PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"}
    words = command(tool("bash"), "--norc", "-c", script + '; echo "${COMPREPLY[*]}"', environment=environment)
    assert words == "doctor\n"


def test_the_wrapper_that_binds_ranks_is_there(prefix: Path) -> None:
    environment = {"MPI_LOCALRANKID": "1", "AWAKEN_EMULATE": "cuda:2"}
    wrapper = prefix / "bin" / "bind_gpu.sh"
    assert command(wrapper, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", environment=environment) == "1\n"
    # Wherever it is called, and without a rank.
    assert "Gives each rank of a host a GPU of its own" in command("sh", "-c", 'cd / && exec "$0" --help', wrapper)


@pytest.mark.parametrize(
    "place", ["pt2pt/osu_bw", "collective/osu_allreduce", "one-sided/osu_put_bw", "startup/osu_init"]
)
def test_osu_programs_lie_where_omb_has_them(prefix: Path, tmp_path: Path, place: str) -> None:
    tree = prefix / "libexec" / "osu-micro-benchmarks" / "mpi"
    there = [path.name for path in tree.glob("*/osu_*")]
    assert sorted(there) == sorted(path.name for path in (prefix / "bin").glob("osu_*"))
    test = place.partition("osu_")[2]
    library = tmp_path / "libawaken.so"  # LD_PRELOAD takes no path with the prefix's blank
    library.symlink_to(prefix / "lib" / "awaken" / "libawaken.so")
    environment = {"AWAKEN_LIBRARY": str(library)}
    printed = command(tree / place, "--help", environment=environment)
    assert f"awaken bench {test}" in printed
    link = tmp_path / "link"
    link.symlink_to(tree / place)
    assert command(link, "--help", environment=environment) == printed


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_pkg_config(
    mpi: str, prefix: Path, either_source: Path, tmp_path: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    used = mpi_named(mpi)
    moved = prefix.parent / "moved"  # pkg-config files know no quoting of blanks that every reader understands
    if not moved.exists():
        moved.symlink_to(prefix)
    found_by = {"PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig")}
    flags = command(tool("pkg-config"), "--cflags", "--libs", "awaken", environment=found_by).split()
    program = tmp_path / "program"
    emulator = prefix / "lib" / "awaken" / "emulator"
    command(
        used.mpiexec.parent / "mpicc",
        AS_NEEDED,
        either_source,
        "-o",
        program,
        *flags,
        f"-L{emulator}",
        "-l:libcuda.so.1",
    )
    assert re.match(r"libawaken\.so .*libmpi\.so\.", libraries_of(program))
    check_run(used, program, prefix)


def test_plain_link_option(prefix: Path, source: Path, tmp_path: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """-lawaken with the prefix's lib folder, as docs/install.md says."""
    used = mpi_named("mpich")
    lib = prefix / "lib"
    program = tmp_path / "program"
    command(
        used.mpiexec.parent / "mpicc", AS_NEEDED, source, "-o", program, f"-I{prefix}/include",
        "-Wl,--no-as-needed", f"-L{lib}", "-lawaken", f"-Wl,-rpath,{lib}/awaken",
        f"-L{lib}/awaken/emulator", "-l:libcuda.so.1",
    )  # fmt: skip
    assert re.match(r"libawaken\.so .*libmpi\.so\.", libraries_of(program))
    check_run(used, program, prefix)


def test_cmake_package(
    prefix: Path, either_source: Path, tmp_path: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    used = mpi_named("mpich")
    (either_source.parent / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(outside LANGUAGES C)\n"
        "find_package(awaken REQUIRED)\n"
        "find_package(MPI REQUIRED COMPONENTS C)\n"
        "add_executable(program program.c)\n"
        "target_link_libraries(program PRIVATE awaken::awaken MPI::MPI_C ${DRIVER})\n"
    )
    build = tmp_path / "build"
    driver = prefix / "lib" / "awaken" / "emulator" / "libcuda.so.1"
    command(
        tool("cmake"), "-S", either_source.parent, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DMPI_C_COMPILER={used.mpiexec.parent / 'mpicc'}", f"-DDRIVER={driver}",
        f"-DCMAKE_EXE_LINKER_FLAGS={AS_NEEDED}",
    )  # fmt: skip
    command(tool("cmake"), "--build", build)
    assert re.match(r"libawaken\.so .*libmpi\.so\.", libraries_of(build / "program"))
    check_run(used, build / "program", prefix)


ASKS_AT_COMPILE_TIME = """
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif
#if !defined(MPIX_CUDA_AWARE_SUPPORT) || !MPIX_CUDA_AWARE_SUPPORT || !MPIX_ROCM_AWARE_SUPPORT
#error device memory is left out
#endif
int main(void) { return 0; }
"""


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_headers_answer_is_yes(
    mpi: str, prefix: Path, tmp_path: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Of pkg-config and of CMake, without a warning."""
    (tmp_path / "program.c").write_text(ASKS_AT_COMPILE_TIME)
    compiler = mpi_named(mpi).mpiexec.parent / "mpicc"
    alone = subprocess.run(
        [compiler, "-c", "program.c"], cwd=tmp_path, capture_output=True, text=True, timeout=harness.HANG_S, check=False
    )
    assert alone.returncode != 0 and "device memory is left out" in alone.stderr
    moved = tmp_path / "moved"  # as in test_pkg_config
    moved.symlink_to(prefix)
    found_by = {"PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig")}
    flags = command(tool("pkg-config"), "--cflags", "awaken-gpu-aware", environment=found_by).split()
    command(compiler, "-Werror", *flags, "-c", tmp_path / "program.c", "-o", tmp_path / "program.o")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(outside LANGUAGES C)\nfind_package(awaken REQUIRED)\n"
        "add_executable(program program.c)\ntarget_link_libraries(program PRIVATE awaken::gpu_aware)\n"
    )
    build = tmp_path / "build"
    command(
        tool("cmake"), "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={compiler}"
    )
    command(tool("cmake"), "--build", build)
    assert "libawaken" not in libraries_of(build / "program")


def test_fortran_finds_the_streams(prefix: Path, tmp_path: Path) -> None:
    """The module's sources, which CMake's package names, compile as docs/streams.md says."""
    compilers = [tool("mpif90.mpich"), tool("mpicc.mpich")]
    tool("gfortran")
    (tmp_path / "program.f90").write_text(
        "use mpi_f08\nuse awaken_mpix_stream\ncall MPI_Init()\n"
        "if (MPIX_STREAM_NULL%MPI_VAL == 0) stop 1\ncall MPI_Finalize()\nend\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(outside LANGUAGES C Fortran)\n"
        "find_package(awaken REQUIRED)\n"
        "add_executable(program program.f90 ${awaken_MPIX_STREAM_F08})\n"
        "target_link_libraries(program PRIVATE awaken::awaken)\n"
    )
    build = tmp_path / "build"
    command(
        tool("cmake"), "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_Fortran_COMPILER={compilers[0]}", f"-DCMAKE_C_COMPILER={compilers[1]}",
    )  # fmt: skip
    command(tool("cmake"), "--build", build)
    assert libraries_of(build / "program").startswith("libawaken.so ")


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    """In words: a Python 3.6 does not even read tools/setup.py."""
    old = tmp_path / "python3"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 6, 8); $2"\n')
    old.chmod(0o755)
    done = subprocess.run(
        [tool("make"), "setup", f"PYTHON={old}"],
        cwd=harness.ROOT,
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert done.returncode == 2 and "use 3.9 or newer (make PYTHON=" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
def test_own_mpi(mpi: str, tmp_path: Path, source: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """-DAWAKEN_MPI=<mpicc>: without wheels or network, for the MPI of this machine alone."""
    used = mpi_named(mpi)
    compiler = tool(f"mpicc.{mpi.removeprefix('debian-')}")
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    abi = "mpich" if "mpich" in mpi else "openmpi"
    command(
        tool("cmake"), "-S", harness.ROOT, "-B", build, "-GNinja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DAWAKEN_MPI={compiler}", f"-DAWAKEN_ABIS={abi}", "-DAWAKEN_BUILD_TESTS=OFF", "-DAWAKEN_BUILD_APPS=OFF",
        "-DAWAKEN_PRECOMPILE_KERNELS=OFF",
        "-DAWAKEN_MPICH_ROOT=/nonexistent", "-DAWAKEN_OPENMPI_ROOT=/nonexistent",
    )  # fmt: skip
    command(tool("cmake"), "--build", build, "--parallel", str(os.cpu_count() or 2), timeout_s=harness.LONG_HANG_S)
    command(tool("cmake"), "--install", build, "--prefix", prefix)
    program = tmp_path / "program"
    emulator = prefix / "lib" / "awaken" / "emulator"
    flags: list[str | Path] = ["-I", prefix / "include", f"-L{prefix}/lib/awaken", f"-Wl,-rpath,{prefix}/lib/awaken"]
    link: Sequence[str | Path] = ["-Wl,--no-as-needed", "-lawaken", f"-L{emulator}", "-l:libcuda.so.1"]
    command(compiler, source, "-o", program, *flags, *link)
    check_run(used, program, prefix)


@pytest.mark.long
def test_wheel(tmp_path: Path, source: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """`pip install .` gives the `awaken` command, the library and the emulator."""
    used = mpi_named("mpich")
    environment = tmp_path / "venv"
    command(sys.executable, "-m", "venv", "--without-pip", environment)
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    # From a copy, so that the tree under test is not built in.
    tree = tmp_path / "tree"
    shutil.copytree(harness.ROOT, tree, ignore=shutil.ignore_patterns("build", ".venv", ".git", ".hw"))
    command(
        sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", tree,
        timeout_s=harness.LONG_HANG_S, environment=index,
    )  # fmt: skip
    awaken = environment / "bin" / "awaken"
    assert "awaken " in command(awaken, "version")
    assert os.access(environment / "bin" / "bind_gpu.sh", os.X_OK)
    log = tmp_path / "osu.log"
    log.write_text("# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n8   1.00\n16   2.00\n")
    command(awaken, "report", log, "-o", tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()
    program = tmp_path / "program"
    emulator = environment / "lib" / "awaken" / "emulator"
    command(
        used.mpiexec.parent / "mpicc", source, "-o", program, "-I", environment / "include",
        f"-L{environment}/lib/awaken", f"-Wl,-rpath,{environment}/lib/awaken", "-lawaken",
        f"-L{emulator}", "-l:libcuda.so.1",
    )  # fmt: skip
    check_run(used, program, environment)
    # And unlinked, through the command.
    preloaded = tmp_path / "preloaded"
    plain = source.with_name("plain.c")
    plain.write_text(PROGRAM.replace("#include <awaken/awaken.h>\n", "").replace("awaken_version()", '"none"'))
    command(used.mpiexec.parent / "mpicc", plain, "-o", preloaded, f"-L{emulator}", "-l:libcuda.so.1")
    output = command(
        "timeout", str(harness.HANG_S), used.mpiexec, "-n", "2", awaken, "exec", "--emulate", "cuda:2", "--", preloaded,
        environment={"LD_LIBRARY_PATH": str(emulator)},
    )  # fmt: skip
    assert "sum 3 version none" in output
