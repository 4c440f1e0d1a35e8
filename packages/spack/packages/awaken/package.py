# SPDX-License-Identifier: Apache-2.0
"""Awaken from the tree that this recipe lies in: `spack repo add packages/spack`, then `spack install awaken`."""

from pathlib import Path

from spack.package import *

try:
    # Spack 1 keeps its build systems apart from its core.
    from spack_repo.builtin.build_systems.cmake import CMakePackage
except ImportError:
    pass

TREE = Path(__file__).resolve().parents[4]


class Awaken(CMakePackage):
    """Makes any MPI GPU-aware: preloaded into an unmodified program, it lets its MPI calls take device pointers."""

    git = TREE.as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    variant("emulator", default=True, description="Build the emulated GPU driver (awaken exec --emulate)")
    variant("bench", default=True, description="Build the benchmarks, on which awaken doctor and topo stand, too")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("nlohmann-json@3.11:", type="build", when="+bench")
    # Its headers alone: a program brings its own MPI, which may be another one of the same ABI. The type "link" would
    # write a path to this one into the library.
    depends_on("mpi", type=("build", "run"))

    conflicts("%gcc@:10", msg="Awaken is written in C++20: use GCC 11 or newer")
    conflicts("platform=darwin", msg="Awaken runs on Linux only")

    def cmake_args(self):
        abi = "openmpi" if self.spec["mpi"].name in ("openmpi", "hpcx-mpi") else "mpich"
        return [
            self.define("AWAKEN_MPI", self.spec["mpi"].mpicc),
            self.define("AWAKEN_ABIS", abi),
            self.define("AWAKEN_BUILD_APPS", False),
            self.define("AWAKEN_BUILD_TESTS", False),
            # CMake would take the system's, of which Spack knows nothing.
            self.define("AWAKEN_USE_HWLOC", False),
            self.define_from_variant("AWAKEN_BUILD_EMULATOR", "emulator"),
            self.define_from_variant("AWAKEN_BUILD_BENCH", "bench"),
        ]

    def test_osu_latency(self):
        """two ranks exchange device memory on an emulated GPU"""
        if not self.spec.satisfies("+emulator+bench"):
            raise SkipTest("needs the variants emulator and bench")
        mpiexec = Executable(join_path(self.spec["mpi"].prefix.bin, "mpiexec"))
        command = [self.prefix.bin.awaken, "exec", "--emulate", "cuda:2", "--", self.prefix.bin.osu_latency]
        output = mpiexec("-n", "2", *command, "-m", "1:8", "D", "D", output=str.split, error=str.split)
        check_outputs(r"(?m)^8\s+\d", output)
