# SPDX-License-Identifier: Apache-2.0
"""A rank program: awaken.stream on arrays and streams of several kinds, compared with mpi4py on NumPy's arrays.

Started by test_stream.py under the emulated driver. CuPy and PyTorch cannot run there: stand-ins have the attributes of
theirs that the module uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from awaken.stream import On, Request
from mpi4py import MPI

Host = np.ndarray[Any, Any]
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE


class Gpu:
    """CUDA's or HIP's runtime."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        for version in ("13", "12") if prefix == "cuda" else ("7", "6", "5"):
            with contextlib.suppress(OSError):
                name = "libcudart" if prefix == "cuda" else "libamdhip64"
                self.library = ctypes.CDLL(f"{name}.so.{version}")
                break
        devices = ctypes.c_int()
        self.call("GetDeviceCount", ctypes.byref(devices))
        self.device = RANK % devices.value
        self.call("SetDevice", self.device)

    def call(self, name: str, *arguments: Any) -> None:
        code = self.library[self.prefix + name](*arguments)
        if code != 0:
            raise SystemExit(f"{self.prefix}{name} failed with code {code}")

    def make_stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("StreamCreate", ctypes.byref(stream))
        return stream.value or 0

    def finish(self, stream: int) -> None:
        self.call("StreamSynchronize", ctypes.c_void_p(stream))


class Memory:
    """Device memory with the values of an array. All of it stays: freeing would wait for the GPU."""

    everything: list[Memory] = []  # noqa: RUF012
    gpu: Gpu

    def __init__(self, values: Any) -> None:
        values = np.ascontiguousarray(values)
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        pointer = ctypes.c_void_p()
        self.gpu.call("Malloc", ctypes.byref(pointer), ctypes.c_size_t(max(self.nbytes, 1)))
        self.address = pointer.value or 0
        self.copy(self.address, values.ctypes.data, 1)
        Memory.everything.append(self)

    def copy(self, to: int, source: int, direction: int) -> None:
        self.gpu.call("Memcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(self.nbytes), direction)

    def get(self) -> Host:
        values = np.empty(self.shape, self.dtype)
        self.copy(values.ctypes.data, self.address, 2)
        return values


class PlainArray(Memory):
    strides: tuple[int, ...] | None = None
    is_read_only = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, self.is_read_only),
            "strides": self.strides,
            "version": 3,
        }


class CupyArray(Memory):
    is_contiguous = True

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.address)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def flags(self) -> Any:
        return types.SimpleNamespace(forc=self.is_contiguous)


class TorchType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """Has no __cuda_array_interface__, as a tensor that needs a gradient."""

    types: dict[str, TorchType] = {}  # noqa: RUF012

    def __init__(self, values: Any, name: str = "") -> None:
        self.memory = Memory(values)
        name = name or self.memory.dtype.name
        self.dtype = self.types.setdefault(name, TorchType(name))
        self.contiguous, self.conjugated = True, False

    def get(self) -> Host:
        return self.memory.get()

    def data_ptr(self) -> int:
        return self.memory.address

    def element_size(self) -> int:
        return int(self.memory.dtype.itemsize)

    def numel(self) -> int:
        return int(np.prod(self.memory.shape))

    def is_contiguous(self) -> bool:
        return self.contiguous

    def is_conj(self) -> bool:
        return self.conjugated


class HostArray:
    """NumPy's, behind the same two functions as the other kinds."""

    def __new__(cls, values: Any) -> Any:
        return np.array(values)


def on_host(array: Any) -> Host:
    return array if isinstance(array, np.ndarray) else array.get()


class TorchStream:
    def __init__(self, address: int) -> None:
        self.cuda_stream, self.device = address, Memory.gpu.device


class CupyStream:
    def __init__(self, address: int) -> None:
        self.ptr, self.device_id = address, Memory.gpu.device


class ProtocolStream:
    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class FirstProtocolStream:
    def __init__(self, address: int) -> None:
        self.__cuda_stream__ = (0, address)


used_devices: list[int] = []


@contextlib.contextmanager
def device(number: int) -> Iterator[None]:
    used_devices.append(number)
    yield


@contextlib.contextmanager
def package(name: str, **contents: Any) -> Iterator[None]:
    """A stand-in that is imported for a while."""
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    yield
    del sys.modules[name]


def torch(is_hip: bool) -> contextlib.AbstractContextManager[None]:
    version = types.SimpleNamespace(hip="6.2" if is_hip else None, cuda=None if is_hip else "12.8")
    return package("torch", version=version, cuda=types.SimpleNamespace(device=device))


def cupy(is_hip: bool) -> contextlib.AbstractContextManager[None]:
    cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(is_hip=is_hip), Device=device)
    return package("cupy", cuda=cuda)


for each in (TorchType, Tensor, TorchStream):
    each.__module__ = "torch"
CupyArray.__module__ = "cupy"
CupyStream.__module__ = "cupy.cuda.stream"

Make = Callable[[Any], Any]


def values(length: int, dtype: str, of: int) -> Host:
    return (np.arange(length) % 50 + of).astype(dtype)


def messages(on: On, finish: Callable[[], None], make: Make) -> None:
    for dtype, length in (("i4", 1), ("f8", 1000), ("c16", 70_000), ("u1", 0), ("f2", 33), ("bool", 5)):
        mine, theirs = values(length, dtype, RANK), values(length, dtype, PREVIOUS)
        out, received = make(mine), make(np.zeros(length, dtype))
        status = MPI.Status()
        if RANK % 2 == 0 and RANK + 1 < SIZE:
            on.send(out, RANK + 1, 5)
        elif RANK % 2:
            on.recv(received, status=status)
            finish()
            np.testing.assert_array_equal(on_host(received), theirs)
            assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (PREVIOUS, 5, theirs.nbytes)
        for way in ("wait", "waitall", "statuses", "mpi4py"):
            received = make(np.zeros(length, dtype))
            requests = [on.irecv(received, PREVIOUS, 7), on.isend(out, NEXT, 7)]
            assert all(isinstance(request, Request) and request for request in requests)
            statuses: list[MPI.Status] = []
            if way == "wait":
                on.wait(requests[0], status)
                on.wait(requests[1])
                statuses = [status]
            elif way == "waitall":
                on.waitall(requests)
            elif way == "statuses":
                on.waitall(requests, statuses)
                assert len(statuses) == 2
            else:
                MPI.Request.Waitall(requests)
            assert not any(requests)
            on.waitall(requests)  # nothing, as in MPI
            finish()
            np.testing.assert_array_equal(on_host(received), theirs)
            if statuses:
                assert (statuses[0].source, statuses[0].tag) == (PREVIOUS, 7)


def nothing_waits(on: On, finish: Callable[[], None], make: Make) -> None:
    """Neither a call nor MPI: the sender comes only after the receivers' calls have returned."""
    array = make(np.zeros(3))
    if RANK:
        on.recv(array, 0, 1)
    WORLD.Barrier()
    if RANK == 0:
        other = make(np.arange(3.0))
        for rank in range(1, SIZE):
            on.send(other, rank, 1)
    finish()
    np.testing.assert_array_equal(on_host(array), np.arange(3.0) * (RANK > 0))


def persistent(on: On, finish: Callable[[], None], make: Make) -> None:
    out, received = make(values(100, "f8", RANK)), make(np.zeros(100))
    requests = [on.comm.Recv_init(as_mpi(received), PREVIOUS, 3), on.comm.Send_init(as_mpi(out), NEXT, 3)]
    for rounds in range(3):
        if rounds == 1:
            on.start(requests[0])
            on.start([requests[1]])
            on.wait(requests[1])
            on.wait(requests[0])
        else:
            on.start(requests)
            on.waitall(requests)
        assert all(requests)
        finish()
        np.testing.assert_array_equal(on_host(received), values(100, "f8", PREVIOUS))
    for request in requests:
        request.Free()


def as_mpi(array: Any) -> Any:
    """What mpi4py takes: the stand-ins of packages have not all that it looks for."""
    if isinstance(array, (np.ndarray, PlainArray)):
        return array
    memory = array.memory if isinstance(array, Tensor) else array
    return [MPI.memory.fromaddress(memory.address, memory.nbytes), MPI.DOUBLE]


def collectives(on: On, finish: Callable[[], None], make: Make) -> None:
    for dtype, length in (("f8", 100), ("i4", 5000), ("c8", 7)):
        mine = values(length, dtype, RANK)
        parts = np.stack([values(length, dtype, RANK + 3 * rank) for rank in range(SIZE)])
        zeros, all_zeros = np.zeros_like(mine), np.zeros_like(parts)

        def check(queue: Callable[[Any, Any], None], plain: Callable[[Any, Any], None], sent: Host, to: Host) -> None:
            out, received, expected = make(sent), make(to), to.copy()
            queue(out, received)
            plain(sent, expected)
            finish()
            np.testing.assert_array_equal(on_host(received), expected)

        def check_in_place(queue: Callable[[Any, Any], None], plain: Callable[[Any, Any], None], to: Host) -> None:
            for marker in (MPI.IN_PLACE, None):
                received, expected = make(to), to.copy()
                queue(marker, received)
                plain(MPI.IN_PLACE, expected)
                finish()
                np.testing.assert_array_equal(on_host(received), expected)

        check(on.allreduce, WORLD.Allreduce, mine, zeros)
        check_in_place(on.allreduce, WORLD.Allreduce, mine)
        if dtype != "c8":
            check(
                lambda out, to: on.allreduce(out, to, MPI.MAX),
                lambda out, to: WORLD.Allreduce(out, to, MPI.MAX),
                mine,
                zeros,
            )
            check(
                lambda out, to: on.reduce_scatter(out, to, op=MPI.MIN),
                lambda out, to: WORLD.Reduce_scatter_block(out, to, op=MPI.MIN),
                parts,
                zeros,
            )
        check(on.allgather, WORLD.Allgather, mine, all_zeros)
        check_in_place(on.allgather, WORLD.Allgather, parts)
        check(on.alltoall, WORLD.Alltoall, parts, all_zeros)
        check_in_place(on.alltoall, WORLD.Alltoall, parts)
        check(on.reduce_scatter, WORLD.Reduce_scatter_block, parts, zeros)

        received = make(parts)
        on.reduce_scatter(MPI.IN_PLACE, received)
        expected = np.zeros_like(mine)
        WORLD.Reduce_scatter_block(parts, expected)
        finish()
        np.testing.assert_array_equal(on_host(received)[0], expected)

        for root in range(SIZE):
            array = make(mine)
            on.bcast(array, root)
            finish()
            np.testing.assert_array_equal(on_host(array), values(length, dtype, root))
        on.barrier()
    finish()


def buffer_forms(on: On, finish: Callable[[], None], make: Make) -> None:
    out = make(np.arange(20.0))
    every_second = MPI.DOUBLE.Create_vector(5, 1, 2).Commit()
    forms: list[tuple[Any, Callable[[Any], Any], slice]] = [
        ((out, MPI.DOUBLE), lambda to: [to, MPI.DOUBLE], slice(20)),
        ([out, "d"], lambda to: (to, "d"), slice(20)),
        ([out, 4], lambda to: [to, 4], slice(4)),
        ([out, 4, MPI.DOUBLE], lambda to: [to, 4, "d"], slice(4)),
        ([out, (3, 2), MPI.DOUBLE], lambda to: [to, 3, 2, MPI.DOUBLE], slice(2, 5)),
        ([out, 1, every_second], lambda to: [to, 1, every_second], slice(0, 10, 2)),
    ]
    for sent, form, written in forms:
        received = make(np.zeros(20))
        requests = [on.irecv(form(received), PREVIOUS), on.isend(sent, NEXT)]
        on.waitall(requests)
        finish()
        expected = np.zeros(20)
        expected[written] = np.arange(20.0)[written]
        np.testing.assert_array_equal(on_host(received), expected)
    # Counts of collectives are those for a rank.
    gathered = make(np.zeros((SIZE, 4)))
    on.allgather([out, 4, MPI.DOUBLE], [gathered, 4, MPI.DOUBLE])
    every_second.Free()
    finish()
    np.testing.assert_array_equal(on_host(gathered), np.tile(np.arange(4.0), (SIZE, 1)))
    on.send([None, 0, MPI.INT], MPI.PROC_NULL)
    on.send([MPI.BOTTOM, 0, MPI.INT], MPI.PROC_NULL)


def own_operation(on: On, finish: Callable[[], None], make: Make) -> None:
    """The MPI calls Python's function in a thread of the layer."""

    def larger(first: Any, second: Any, datatype: MPI.Datatype) -> None:
        result = np.frombuffer(second, "f8")
        np.maximum(np.frombuffer(first, "f8"), result, out=result)

    op = MPI.Op.Create(larger, commute=True)
    received = make(np.zeros(10))
    on.allreduce(make(values(10, "f8", RANK)), received, op)
    finish()
    op.Free()
    np.testing.assert_array_equal(on_host(received), values(10, "f8", SIZE - 1))


def every_kind(gpu: Gpu, is_hip: bool) -> None:
    protocols: tuple[type[Any], ...] = (ProtocolStream, FirstProtocolStream)
    kinds: list[tuple[contextlib.AbstractContextManager[None], Callable[[int], Any], Make]] = [
        (contextlib.nullcontext(), int, PlainArray),
        (contextlib.nullcontext(), protocols[RANK % 2], HostArray),
        (torch(is_hip), TorchStream, Tensor),
        (cupy(is_hip), CupyStream, CupyArray),
    ]
    for installed, make_stream, make in kinds:
        address = gpu.make_stream()
        used_devices.clear()
        with installed, On(WORLD, make_stream(address)) as on:
            assert type(on.comm) is MPI.Intracomm and on.comm.size == SIZE
            assert used_devices == [gpu.device] * (make in (Tensor, CupyArray))

            def finish(address: int = address) -> None:
                gpu.finish(address)

            for case in (messages, nothing_waits, persistent, collectives, buffer_forms, own_operation):
                case(on, finish, make)
        gpu.call("StreamDestroy", ctypes.c_void_p(address))


def more_host_memory(gpu: Gpu) -> None:
    """The default stream, and what is no array of NumPy."""
    import array

    with On(WORLD, 0) as on:
        received = bytearray(5)
        numbers = array.array("d", [0.0, 0.0])
        requests = [on.irecv(received, PREVIOUS, 1), on.irecv(memoryview(numbers), PREVIOUS, 2)]
        requests += [on.isend(b"hello", NEXT, 1), on.isend(array.array("d", [1.0, RANK]), NEXT, 2)]
        on.waitall(requests)
        gpu.finish(0)
        assert received == b"hello" and list(numbers) == [1.0, PREVIOUS], (received, numbers)
        # In Fortran's order, too.
        fortran = np.zeros((2, 3), order="F")
        requests = [on.irecv(fortran, PREVIOUS), on.isend(np.asfortranarray(np.arange(6.0).reshape(2, 3)), NEXT)]
        on.waitall(requests)
        gpu.finish(0)
        np.testing.assert_array_equal(fortran, np.arange(6.0).reshape(2, 3))
        total = np.zeros(2, "i4")
        on.allreduce(np.array([1, RANK], "i4"), total)
        gpu.finish(0)
        assert list(total) == [SIZE, SIZE * (SIZE - 1) // 2]


def arrays_stay(gpu: Gpu) -> None:
    """For as long as the stream needs them, and no longer."""
    stream = gpu.make_stream()
    with On(WORLD, stream) as on:
        arrays = [np.zeros(1000) for _ in range(4)]
        received, later, sent, large = map(weakref.ref, arrays)
        if RANK:
            on.recv(arrays[0], 0, 1)
        else:
            on.wait(on.irecv(arrays[0], MPI.PROC_NULL))
        request = on.irecv(arrays[1], PREVIOUS, 2)
        on.wait(on.isend(arrays[2], MPI.PROC_NULL, 3))
        on.send([arrays[3], 1000, MPI.DOUBLE], MPI.PROC_NULL)
        del arrays
        for _ in range(3 * On._OPERATIONS_PER_EVENT):
            on.send(b"1", MPI.PROC_NULL)
        gc.collect()
        if RANK:
            assert all(each() is not None for each in (received, later, sent, large))
        WORLD.Barrier()
        if RANK == 0:
            for rank in range(1, SIZE):
                on.send(np.ones(1000), rank, 1)
        on.wait(on.isend(np.full(1000, 2.0), NEXT, 2))
        gpu.finish(stream)
        assert later() is not None
        on.wait(request)
        for _ in range(2 * On._OPERATIONS_PER_EVENT):
            on.send(b"1", MPI.PROC_NULL)
        gpu.finish(stream)
        on.barrier()
        assert [each() is None for each in (received, later, sent, large)] == [True] * 4
        # Large ones go as soon as the stream has come past them.
        much = np.zeros(On._BYTES_PER_EVENT, "u1")
        gone = weakref.ref(much)
        on.send(much, MPI.PROC_NULL)
        del much
        gpu.finish(stream)
        on.barrier()
        assert gone() is None
        # What mpi4py has completed is not kept for ever.
        for _ in range(300):
            on.isend(b"1", MPI.PROC_NULL).Wait()
        assert len(on._open) < 200


def graphs(gpu: Gpu) -> None:
    """Replays use the memory of calls; the On keeps it until it is freed."""
    stream, other = gpu.make_stream(), gpu.make_stream()
    graph, executable, late = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    relaxed, whole_process = 2, 0
    out, received, total = PlainArray(np.zeros(50)), PlainArray(np.zeros(50)), PlainArray(np.zeros(50))
    on = On(WORLD, stream)
    for _ in range(On._OPERATIONS_PER_EVENT - 2):  # the next event would come within the capture
        on.send(b"1", MPI.PROC_NULL)
    on.send(np.zeros(On._BYTES_PER_EVENT, "u1"), MPI.PROC_NULL)
    gpu.call("StreamBeginCapture", ctypes.c_void_p(stream), relaxed)
    host = np.zeros(3)
    kept = weakref.ref(host)
    on.waitall([on.irecv(received, PREVIOUS, 1), on.isend(out, NEXT, 1)])
    on.allreduce(received, total)
    on.send(host, MPI.PROC_NULL)
    del host
    for _ in range(2 * On._OPERATIONS_PER_EVENT):
        on.barrier()
        on.send(b"1", MPI.PROC_NULL)
    gpu.call("StreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    gpu.call("GraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    for replay in range(3):
        out.copy(out.address, np.full(50, 10.0 * RANK + replay).ctypes.data, 1)
        gpu.call("GraphLaunch", executable, ctypes.c_void_p(stream))
        gpu.finish(stream)
        np.testing.assert_array_equal(received.get(), 10.0 * PREVIOUS + replay)
        np.testing.assert_array_equal(total.get(), 5.0 * SIZE * (SIZE - 1) + SIZE * replay)
        on.barrier()
    much = np.zeros(On._BYTES_PER_EVENT, "u1")
    gone = weakref.ref(much)
    on.send(much, MPI.PROC_NULL)
    del much
    gpu.finish(stream)
    on.barrier()
    assert gone() is None and kept() is not None
    # A capture of another stream, which forbids the whole process much, is not spoilt.
    gpu.finish(stream)
    gpu.call("StreamBeginCapture", ctypes.c_void_p(other), whole_process)
    for _ in range(2 * On._OPERATIONS_PER_EVENT):
        on.send(b"1", MPI.PROC_NULL)
    gpu.call("StreamEndCapture", ctypes.c_void_p(other), ctypes.byref(late))
    on.free()
    assert kept() is None
    for each in (graph, late):
        gpu.call("GraphDestroy", each)
    gpu.call("GraphExecDestroy", executable)


def topologies(gpu: Gpu) -> None:
    cart = WORLD.Create_cart([SIZE], [True])
    with On(cart, gpu.make_stream()) as on:
        assert isinstance(on.comm, MPI.Cartcomm) and on.comm.Shift(0, 1) == (PREVIOUS, NEXT)
        on.barrier()
    cart.Free()


def no_stream(gpu: Gpu) -> None:
    """Rank 0 calls plain functions, which match what others queue."""
    stream = None if RANK == 0 else gpu.make_stream()
    with On(WORLD, stream) as on:
        array = np.full(4, float(RANK))
        if stream is None:
            with raises(RuntimeError, "has passed no stream: call the functions of On.comm"):
                on.send(array, 1)
            for rank in range(1, SIZE):
                on.comm.Send(array + 5, rank)
        else:
            on.recv(array, 0)
            gpu.finish(stream)
            assert list(array) == [5.0] * 4


@contextlib.contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert text in str(error), f"{text!r} is not in {str(error)!r}"
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


def wrong_arguments(gpu: Gpu, is_hip: bool) -> None:
    stream = gpu.make_stream()
    with raises(TypeError, "a str is not a stream"):
        On(WORLD, "stream")
    with raises(TypeError, "a float is not a communicator"):
        On(1.0, stream)  # type: ignore[arg-type]
    with raises(MPI.Exception, "the GPU runtime does not know the stream"):
        On(WORLD, 0x1230)
    with torch(not is_hip), raises(MPI.Exception, "and this process uses"):
        On(WORLD, stream)

    with On(WORLD, stream) as on, On(WORLD, stream) as other:
        host, apart, matrix = np.zeros(4), PlainArray(np.zeros((4, 4))), PlainArray(np.zeros((4, 4)))
        apart.strides = (64, 8)
        matrix.strides = (8, 32)  # in Fortran's order
        on.send(matrix, MPI.PROC_NULL)
        torn, conjugated, scattered = Tensor(np.zeros(4)), Tensor(np.zeros(4, "c8")), CupyArray(np.zeros(4))
        torn.contiguous, conjugated.conjugated, scattered.is_contiguous = False, True, False
        matrix.is_read_only = True
        constant = np.zeros(4)
        constant.flags.writeable = False
        on.send(constant, MPI.PROC_NULL)
        array: Any
        for array in (np.zeros((4, 4))[:, 1], apart, torn, scattered, memoryview(bytes(8))[::2], [host[::2], 1, "d"]):
            with raises(ValueError, "is not contiguous: send a contiguous copy"):
                on.send(array, NEXT)
        apart.strides = (32, 8)
        on.send(apart, MPI.PROC_NULL)
        for array in (constant, matrix, b"1234"):
            with raises(ValueError, "is read-only"):
                on.recv(array, PREVIOUS)
        with raises(ValueError, "resolve_conj"):
            on.send(conjugated, NEXT)
        for nothing in (3, None, object()):
            with raises(TypeError, "is not an array"):
                on.send(nothing, NEXT)
        with raises(TypeError, "not plain data"):
            on.send(np.array([None, 1]), NEXT)
        with raises(TypeError, "MPI has no type for float8_e5m2"):
            on.allreduce(None, Tensor(np.zeros(4, "u1"), "float8_e5m2"))
        swapped = np.zeros(4).astype(np.dtype("f8").newbyteorder())
        on.send(swapped, MPI.PROC_NULL)
        with raises(TypeError, "MPI has no type for "):
            on.allreduce(None, swapped)
        with raises(TypeError, "pass arrays of the same type"):
            on.allreduce(np.zeros(4, "i4"), host)
        with raises(ValueError, "sendbuf has 3 elements where recvbuf wants 4"):
            on.allreduce(np.zeros(3), host)
        with raises(ValueError, "has no equal part for each"):
            on.allgather(np.zeros(1), np.zeros(SIZE + 1))
        with raises(ValueError, "sendbuf has 2 elements for a rank, and recvbuf 1"):
            on.allgather(np.zeros(2), np.zeros(SIZE))
        with raises(ValueError, "sendbuf has 1 elements where recvbuf wants"):
            on.reduce_scatter(np.zeros(1), np.zeros(1))
        for form in ([host], [host, 1, 0, "d", 5]):
            with raises(ValueError, "a buffer is [array, count, datatype]"):
                on.send(form, NEXT)
        with raises(ValueError, "the buffer has 32 bytes, and its count asks for 40"):
            on.send([host, 5], NEXT)
        with raises(ValueError, "is negative"):
            on.send([host, -1], NEXT)
        with raises(ValueError, "needs a count"):
            on.send([None, "d"], NEXT)
        with raises(ValueError, "MPI has no type 'double'"):
            on.send([host, "double"], NEXT)
        with raises(ValueError, "are not 1 equal parts"):
            on.send([np.zeros(3, "u1"), "d"], NEXT)
        with raises(MPI.Exception, "is not in the communicator"):
            on.send(host, SIZE)
        with raises(MPI.Exception, "is not between 0 and MPI_TAG_UB"):
            on.isend(host, NEXT, -5)
        request = other.isend(host, MPI.PROC_NULL)
        for wrong in (request, WORLD.Isend(host, MPI.PROC_NULL)):
            if wrong:
                with raises(ValueError, "nothing was queued here with the request"):
                    on.wait(wrong)
                with raises(ValueError, "nothing was queued here with the request"):
                    on.waitall([wrong])
            wrong.Wait() if wrong is not request else other.wait(request)
    with raises(RuntimeError, "was freed"):
        on.barrier()
    on.free()


def late_failure(gpu: Gpu) -> None:
    """A message that is too long is the error of a later call, and of free()."""
    stream = gpu.make_stream()
    for is_last in (False, True):
        on = On(WORLD, stream)
        if RANK == 0:
            on.send(np.zeros(10), 1)
        elif RANK == 1:
            on.recv(np.zeros(5), 0)
            gpu.finish(stream)
            with raises(MPI.Exception, "failed"):
                on.free() if is_last else on.send(np.zeros(1), MPI.PROC_NULL)
        on.free()
        assert on.comm == MPI.COMM_NULL
        gpu.finish(stream)


def main() -> None:
    vendor = sys.argv[1]
    is_hip = vendor == "hip"
    Memory.gpu = gpu = Gpu(vendor)
    every_kind(gpu, is_hip)
    more_host_memory(gpu)
    arrays_stay(gpu)
    graphs(gpu)
    topologies(gpu)
    no_stream(gpu)
    wrong_arguments(gpu, is_hip)
    late_failure(gpu)

    # What is queued at the end finds its memory: MPI_Finalize waits for it.
    on = On(WORLD, gpu.make_stream())
    on.allreduce(np.ones(100_000), np.zeros(100_000))
    try:
        with On(WORLD, 0) as left:
            raise KeyError
    except KeyError:
        left.barrier()  # was not freed

    WORLD.Barrier()
    if RANK == 0:
        sys.stdout.write("ok operations in a stream\n")


if __name__ == "__main__":
    main()
