# SPDX-License-Identifier: Apache-2.0
"""A rank program: mpi4py on arrays that live on the GPU, found through __cuda_array_interface__.

Started by test_mpi4py.py under the emulated driver; with a real CUDA runtime it is the same program.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from mpi4py import MPI


def load_runtime() -> ctypes.CDLL:
    for name in ("libcudart.so.12", "libcudart.so.13"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SystemExit("no libcudart.so.12 or libcudart.so.13")


CUDA = load_runtime()
TO_DEVICE, TO_HOST = 1, 2


def check(code: int, call: str) -> None:
    if code != 0:
        raise SystemExit(f"{call} failed with code {code}")


class DeviceArray:
    """A contiguous array in device memory."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        pointer = ctypes.c_void_p()
        check(CUDA.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(max(self.nbytes, 1))), "cudaMalloc")
        self.pointer = pointer.value or 0
        self.set(values)

    def __del__(self) -> None:
        CUDA.cudaFree(ctypes.c_void_p(self.pointer))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    def set(self, values: np.ndarray[Any, Any]) -> None:
        values = np.ascontiguousarray(values, dtype=self.dtype)
        source = ctypes.c_void_p(values.ctypes.data)
        check(
            CUDA.cudaMemcpy(ctypes.c_void_p(self.pointer), source, ctypes.c_size_t(self.nbytes), TO_DEVICE),
            "cudaMemcpy",
        )
        check(CUDA.cudaDeviceSynchronize(), "cudaDeviceSynchronize")

    def get(self) -> np.ndarray[Any, Any]:
        values = np.empty(self.shape, self.dtype)
        target = ctypes.c_void_p(values.ctypes.data)
        check(
            CUDA.cudaMemcpy(target, ctypes.c_void_p(self.pointer), ctypes.c_size_t(self.nbytes), TO_HOST), "cudaMemcpy"
        )
        return values


def main() -> None:
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    devices = ctypes.c_int()
    check(CUDA.cudaGetDeviceCount(ctypes.byref(devices)), "cudaGetDeviceCount")
    check(CUDA.cudaSetDevice(rank % devices.value), "cudaSetDevice")
    following, previous = (rank + 1) % size, (rank - 1) % size

    for dtype in ("i4", "f4", "f8", "c16"):
        for length in (1, 1000, 300_000):
            mine = (np.arange(length) % 100 + rank).astype(dtype)
            theirs = (np.arange(length) % 100 + previous).astype(dtype)
            out, received = DeviceArray(mine), DeviceArray(np.zeros(length, dtype))

            request = comm.Irecv(received, source=previous, tag=1)
            comm.Send(out, dest=following, tag=1)
            request.Wait()
            np.testing.assert_array_equal(received.get(), theirs)

            received.set(np.zeros(length, dtype))
            comm.Sendrecv(out, following, 2, received, previous, 2)
            np.testing.assert_array_equal(received.get(), theirs)

            # Host on one side, device on the other.
            host = np.zeros(length, dtype)
            comm.Sendrecv(out, following, 3, host, previous, 3)
            np.testing.assert_array_equal(host, theirs)
            comm.Sendrecv(mine, following, 4, received, previous, 4)
            np.testing.assert_array_equal(received.get(), theirs)

            total = sum((np.arange(length) % 100 + each).astype(dtype) for each in range(size))
            comm.Allreduce(out, received)
            np.testing.assert_array_equal(received.get(), total)
            comm.Reduce(out, received if rank == 0 else None, root=0)
            if rank == 0:
                np.testing.assert_array_equal(received.get(), total)
            comm.Allreduce(MPI.IN_PLACE, out)
            np.testing.assert_array_equal(out.get(), total)
            out.set(mine)

            comm.Bcast(out, root=size - 1)
            np.testing.assert_array_equal(out.get(), (np.arange(length) % 100 + size - 1).astype(dtype))
            gathered = DeviceArray(np.zeros((size, length), dtype))
            out.set(mine)
            comm.Allgather(out, gathered)
            for each in range(size):
                np.testing.assert_array_equal(gathered.get()[each], (np.arange(length) % 100 + each).astype(dtype))

    # A persistent pair, and a derived datatype: every second element.
    length = 2000
    out = DeviceArray(np.zeros(length, "f8"))
    received = DeviceArray(np.full(length, -1.0))
    every_second = MPI.DOUBLE.Create_vector(length // 2, 1, 2).Commit()
    requests = [
        comm.Recv_init([received, 1, every_second], source=previous, tag=5),
        comm.Send_init([out, 1, every_second], dest=following, tag=5),
    ]
    for round_number in range(3):
        out.set(np.arange(length) + 1000.0 * rank + round_number)
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        expected = np.full(length, -1.0)
        expected[::2] = (np.arange(length) + 1000.0 * previous + round_number)[::2]
        np.testing.assert_array_equal(received.get(), expected)
    for prequest in requests:
        prequest.Free()
    every_second.Free()

    comm.Barrier()
    if rank == 0:
        sys.stdout.write("ok device arrays\n")


if __name__ == "__main__":
    main()
