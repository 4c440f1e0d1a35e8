# SPDX-License-Identifier: Apache-2.0
"""Compiles the common GPU kernels while Awaken is built, into the file that src/gpu/precompiled_kernels.h reads.

NVRTC and HIPRTC need no GPU. Each compiler that is there is used; without any the file is empty, and kernels are
compiled at their first use. What was compiled before from the same text is taken from a folder.

The file: a first line, a line with target, key, offset and size of each piece of code, an empty line, the code.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

FIRST_LINE = "AWAKEN KERNELS 1\n"
ALIGNMENT = 64

REDUCTIONS = {
    "copy": "bytes1 bytes2 bytes4 bytes8 bytes16",
    "sum": "uint32 uint64 float16 bfloat16 float32 float64 complex_float32 complex_float64",
    "product": "uint32 uint64 float32 float64",
    "minimum": "int32 uint32 int64 uint64 float32 float64",
    "maximum": "int32 uint32 int64 uint64 float32 float64",
    "logical_and": "uint8 uint32",
    "logical_or": "uint8 uint32",
    "bitwise_and": "uint8 uint32 uint64",
    "bitwise_or": "uint8 uint32 uint64",
    "minimum_location": "pair_int32_int32 pair_float32_int32",
    "maximum_location": "pair_int32_int32 pair_float32_int32",
}
"""The reductions that are compiled, by operation: what MPI programs use most. Types that share a kernel (`same_kernel`
in codes.h) have one name here."""
PACK_PARTS = (1, 2, 3)

OLDEST_CUDA = 70
"""Machine code of one architecture runs on all later ones of its major version, so the first of each is enough."""
PTX_VERSION = "7.0"
"""The version of CUDA 11.0, the oldest driver that is supported. The kernels use nothing newer: ptxas takes them so."""
HIP_TARGETS = ("gfx908", "gfx90a", "gfx942")
"""AMD's GPUs for computing. A HIPRTC that is too old for one refuses it, or crashes."""

OPTIONS = {"nvrtc": ("--std=c++17", "--fmad=false"), "hiprtc": ("-std=c++17", "-O3", "-ffp-contract=off")}
"""As cuda.cpp and hip.cpp have them."""
ARCHITECTURE_OPTION = {"nvrtc": "--gpu-architecture=", "hiprtc": "--offload-arch="}


class CompilerError(Exception):
    pass


@dataclass(frozen=True)
class Compiler:
    """NVRTC or HIPRTC. Called in processes of a pool alone: one that is asked for a GPU it does not know may crash."""

    prefix: str
    """How its functions begin: nvrtc, hiprtc."""
    library: Path

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(ctypes.CDLL(str(self.library)), self.prefix + name)
        result = function(*arguments)
        if result != 0:
            raise CompilerError(f"{self.prefix}{name} failed with {result}")

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{self.prefix.upper()} {major.value}.{minor.value}"

    def targets(self) -> list[str]:
        """What code is made for: machine code, then for CUDA also PTX, for GPUs that are not known yet."""
        if self.prefix == "hiprtc":
            return list(HIP_TARGETS)
        count = ctypes.c_int()
        self.call("GetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self.call("GetSupportedArchs", known)
        first: dict[int, int] = {}
        for number in sorted(number for number in known if number >= OLDEST_CUDA):
            first.setdefault(number // 10, number)
        return [*(f"sm_{number}" for number in first.values()), f"compute_{min(first.values())}"]

    def text_of(self, program: ctypes.c_void_p, part: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"Get{part}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self.call(f"Get{part}", program, content)
        return content.raw

    def compile(self, source: str, target: str, file: Path) -> None:
        """Writes the code to the file."""
        program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(program), source.encode(), b"kernel.h", 0, None, None)
        options = [option.encode() for option in (ARCHITECTURE_OPTION[self.prefix] + target, *OPTIONS[self.prefix])]
        try:
            self.call("CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
        except CompilerError as error:
            raise CompilerError(f"{error}: {self.text_of(program, 'ProgramLog').decode(errors='replace')}") from None
        if target.startswith("compute_"):
            code = re.sub(rb"(?m)^\.version .*$", f".version {PTX_VERSION}".encode(), self.text_of(program, "PTX"))
        else:
            code = self.text_of(program, "CUBIN" if self.prefix == "nvrtc" else "Code")
        self.call("DestroyProgram", ctypes.byref(program))
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(code)
        fresh.replace(file)


def quiet() -> None:
    """In a process of a pool: it leaves the cores to the compiler of C++, and its crash says nothing."""
    os.nice(10)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def fnv1a(content: bytes, state: int) -> int:
    for byte in content:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


def key_of(parts: Sequence[str]) -> str:
    """KernelCache::key()."""
    content = b"".join(f"{len(part.encode())}:{part}".encode() for part in parts)
    return "".join(f"{fnv1a(content, start):016x}" for start in (0xCBF29CE484222325, 0x9AE16A3B2F90404F))


def numbers_of(enumeration: str, text: str) -> dict[str, int]:
    """The numbers of the names of an enumeration of codes.h."""
    body = re.search(rf"enum class {enumeration} : unsigned {{(.*?)}};", text, re.S)
    if body is None:
        sys.exit(f"compile_kernels: there is no enumeration {enumeration}")
    names = re.findall(r"^\s*(\w+)", re.sub(r"///<.*", "", body.group(1)), re.M)
    return {name: number for number, name in enumerate(names)}


def sources_of(texts: str, codes: str) -> list[str]:
    """The texts that the library gives to the runtime's compiler, the shortest first."""
    text = dict(re.findall(r'(\w+)_source = R"awaken_kernel\((.*?)\)awaken_kernel"', texts, re.S))
    types, operations = numbers_of("ElementType", codes), numbers_of("ReductionOperation", codes)
    numbers = [
        types[element] * 16 + operations[operation]
        for operation, elements in REDUCTIONS.items()
        for element in elements.split()
    ]
    return [
        text["copy"],
        text["steps"],
        *(f"#define AWAKEN_PACK_PART {part}\n{text['pack']}" for part in PACK_PARTS),
        *(f"#define AWAKEN_ONLY_CODE {number}\n{text['combine']}" for number in numbers),
    ]


@dataclass(frozen=True)
class Code:
    target: str
    key: str
    file: Path


def code_of(compiler: Compiler, sources: Sequence[str], keys: Sequence[str], folder: Path, jobs: int) -> list[Code]:
    """What this compiler makes of the sources, for all its targets. Says which targets it does not know."""
    made: list[Code] = []
    with ProcessPoolExecutor(1, initializer=quiet) as pool:
        version = pool.submit(compiler.version).result()
        targets = pool.submit(compiler.targets).result()
    served = []
    for target in targets:
        files = []
        for source in sources:
            parts = (version, str(compiler.library.stat().st_size), target, PTX_VERSION, *OPTIONS[compiler.prefix])
            files.append(folder / hashlib.sha256("\0".join((*parts, source)).encode()).hexdigest()[:32])
        missing = [(source, file) for source, file in zip(sources, files) if not file.exists()]
        try:
            # The first alone, to see whether the compiler knows the target.
            for some in (missing[:1], missing[1:]):
                with ProcessPoolExecutor(jobs, initializer=quiet) as pool:
                    for done in [pool.submit(compiler.compile, source, target, file) for source, file in some]:
                        done.result()
        except (CompilerError, BrokenProcessPool) as error:
            print(f"GPU kernels: {version} makes none for {target}: {str(error).splitlines()[0]}", flush=True)
            continue
        served.append(target)
        made += [Code(target, key, file) for key, file in zip(keys, files)]
    print(f"GPU kernels: {len(sources)} by {version} for {', '.join(served) or 'nothing'}", flush=True)
    return made


def write(output: Path, made: Sequence[Code]) -> None:
    contents = [code.file.read_bytes() for code in made]
    line = "{:<12} {} {:>10} {:>10}\n"
    offset = len(FIRST_LINE) + sum(len(line.format(code.target, code.key, 0, 0)) for code in made) + 1
    lines, body = [FIRST_LINE], b""
    pieces = []
    for code, content in zip(made, contents):
        gap = -offset % ALIGNMENT
        lines.append(line.format(code.target, code.key, offset + gap, len(content)))
        pieces.append(bytes(gap) + content)
        offset += gap + len(content)
    body = b"".join(pieces)
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_suffix(f".{os.getpid()}")
    fresh.write_bytes("".join([*lines, "\n"]).encode() + body)
    fresh.replace(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--texts", type=Path, required=True, help="the source with the texts of all kernels")
    parser.add_argument("--codes", type=Path, required=True, help="codes.h")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="keeps what was compiled")
    parser.add_argument("--nvrtc", type=Path, help="path of libnvrtc")
    parser.add_argument("--hiprtc", type=Path, help="path of libhiprtc, or of a libamdhip64 that has its functions")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--first", type=int, metavar="N", help="only the first N kernels, for a test")
    options = parser.parse_args()
    compilers = [Compiler(name, path) for name in ("nvrtc", "hiprtc") if (path := getattr(options, name)) is not None]
    start = time.monotonic()
    made: list[Code] = []
    if compilers:
        sources = sources_of(options.texts.read_text(), options.codes.read_text())[: options.first]
        options.folder.mkdir(parents=True, exist_ok=True)
        for compiler in compilers:
            keys = [key_of((source, *OPTIONS[compiler.prefix])) for source in sources]
            made += code_of(compiler, sources, keys, options.folder, options.jobs)
        needed = {code.file for code in made}
        for file in options.folder.iterdir():
            if file not in needed:
                file.unlink()
    else:
        print("GPU kernels: no NVRTC and no HIPRTC is there, so each is compiled at its first use", flush=True)
    write(options.output, made)
    if made:
        size = options.output.stat().st_size / 1e6
        print(f"GPU kernels: {size:.1f} MB in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
