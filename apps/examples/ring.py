# SPDX-License-Identifier: Apache-2.0
"""A ring of ranks in Python: each rank passes a device array to the next one, then all of them sum one up.

mpi4py takes every array that tells its address by `__cuda_array_interface__`, as CuPy arrays and PyTorch tensors do.
`--arrays plain` needs none of these packages, whose kernels an emulated GPU does not have: it allocates with the GPU
runtime alone.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

ELEMENTS = 1 << 20

Host = np.ndarray[Any, np.dtype[np.float64]]
"""What each kind of arrays gives: an array full of a value on device `rank modulo devices`, and its copy on the
host."""
Kind = tuple[Callable[[float], Any], Callable[[Any], Host]]


class PlainArray:
    """Doubles in device memory, without any package."""

    def __init__(self, runtime: Runtime, value: float) -> None:
        self.runtime, self.pointer = runtime, ctypes.c_void_p()
        runtime.call("Malloc", ctypes.byref(self.pointer), ctypes.c_size_t(8 * ELEMENTS))
        host = np.full(ELEMENTS, value, np.float64)
        runtime.call("Memcpy", self.pointer, ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(host.nbytes), 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (ELEMENTS,), "typestr": "<f8", "data": (self.pointer.value, False), "version": 3}

    def on_host(self) -> Host:
        host = np.empty(ELEMENTS)
        self.runtime.call("Memcpy", ctypes.c_void_p(host.ctypes.data), self.pointer, ctypes.c_size_t(host.nbytes), 2)
        return host


class Runtime:
    """CUDA's or HIP's runtime, the first that has a device."""

    def __init__(self) -> None:
        devices = ctypes.c_int()
        for prefix, stem, versions in (("hip", "libamdhip64", "765"), ("cuda", "libcudart", ("13", "12", "11.0"))):
            for version in versions:
                try:
                    library = ctypes.CDLL(f"{stem}.so.{version}")
                except OSError:
                    continue
                if library[f"{prefix}GetDeviceCount"](ctypes.byref(devices)) == 0 and devices.value > 0:
                    self.prefix, self.library, self.devices = prefix, library, devices.value
                    return
        raise SystemExit("ring.py: no GPU, or no GPU runtime (libamdhip64, libcudart) in the loader's path")

    def call(self, name: str, *arguments: Any) -> None:
        code = self.library[self.prefix + name](*arguments)
        if code != 0:
            raise SystemExit(f"ring.py: {self.prefix}{name} failed with code {code}")


def plain(rank: int) -> Kind:
    runtime = Runtime()
    runtime.call("SetDevice", rank % runtime.devices)
    return lambda value: PlainArray(runtime, value), lambda array: array.on_host()


def cupy(rank: int) -> Kind:
    import cupy

    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    return lambda value: cupy.full(ELEMENTS, value, dtype=np.float64), cupy.asnumpy


def torch(rank: int) -> Kind:
    import torch

    torch.cuda.set_device(rank % torch.cuda.device_count())
    return (
        lambda value: torch.full((ELEMENTS,), value, dtype=torch.float64, device="cuda"),
        lambda tensor: tensor.cpu().numpy(),
    )


def main() -> int:
    kinds = {"plain": plain, "cupy": cupy, "torch": torch}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrays", choices=kinds, default="plain", help="which package makes the arrays")
    comm = MPI.COMM_WORLD
    full, on_host = kinds[parser.parse_args().arrays](comm.rank)
    following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    mine, other = full(comm.rank), full(-1)
    comm.Sendrecv(mine, dest=following, recvbuf=other, source=previous)
    wrong = np.count_nonzero(on_host(other) != previous)

    comm.Allreduce(mine, other, op=MPI.SUM)
    wrong += np.count_nonzero(on_host(other) != comm.size * (comm.size - 1) / 2)

    wrong = comm.allreduce(wrong)
    if comm.rank == 0:
        line = f"PASS ring: {ELEMENTS} doubles round {comm.size} ranks, and their sum"
        print(f"FAIL ring: {wrong} wrong elements" if wrong else line, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
