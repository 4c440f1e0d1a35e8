# SPDX-License-Identifier: Apache-2.0
"""MPI operations in a stream of CuPy, PyTorch or any other GPU package, through mpi4py.

    from awaken.stream import On
    from mpi4py import MPI

    with On(MPI.COMM_WORLD, torch.cuda.current_stream()) as on:
        requests = [on.irecv(halo, left), on.isend(edge, right)]
        on.waitall(requests)             # the stream waits, the program goes on
        on.allreduce(gradient, total)    # comes after what the stream had before, and before what it gets next

No call waits for the GPU. The functions are those of include/awaken/mpix_stream.h; docs/streams.md says what holds.
The program must run by `awaken exec`. This module needs mpi4py; no other module of the package does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from mpi4py import MPI

__all__ = ["On", "Request"]

# ---- the library's functions -----------------------------------------------------------------------------------------

_IS_MPICH = MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int)
"""Handles are ints in MPICH and its family, and pointers in Open MPI and in the ABI of MPI 5."""
_Handle: Any = ctypes.c_int if _IS_MPICH else ctypes.c_void_p
_IGNORED = 1 if _IS_MPICH else 0
"""MPI_STATUS_IGNORE and MPI_STATUSES_IGNORE: (MPI_Status*)1 in MPICH's mpi.h, a null pointer in the other ones."""
_NULL_REQUEST = ctypes.string_at(MPI._addressof(MPI.REQUEST_NULL), ctypes.sizeof(_Handle))
_STREAM_NULL = 0x3C000000

_address = MPI._addressof
_handle = MPI._handleof
_Call = Callable[..., int]


class _Functions(NamedTuple):
    """With large counts: the library narrows them where the MPI has no such functions."""

    info_set_hex: _Call
    stream_create: _Call
    stream_free: _Call
    stream_comm_create: _Call
    send: _Call
    recv: _Call
    isend: _Call
    irecv: _Call
    wait: _Call
    waitall: _Call
    startall: _Call
    allreduce: _Call
    bcast: _Call
    allgather: _Call
    alltoall: _Call
    reduce_scatter: _Call
    barrier: _Call


@functools.lru_cache(maxsize=1)
def _functions() -> _Functions:
    """Raises RuntimeError when the program does not run under Awaken."""
    integer, count, pointer, handle = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p, _Handle
    buffer = (pointer, count, handle)
    prototypes = {
        "MPIX_Info_set_hex": (handle, ctypes.c_char_p, pointer, integer),
        "MPIX_Stream_create": (handle, pointer),
        "MPIX_Stream_free": (pointer,),
        "MPIX_Stream_comm_create": (handle, integer, pointer),
        "MPIX_Send_enqueue_c": (*buffer, integer, integer, handle),
        "MPIX_Recv_enqueue_c": (*buffer, integer, integer, handle, pointer),
        "MPIX_Isend_enqueue_c": (*buffer, integer, integer, handle, pointer),
        "MPIX_Irecv_enqueue_c": (*buffer, integer, integer, handle, pointer),
        "MPIX_Wait_enqueue": (pointer, pointer),
        "MPIX_Waitall_enqueue": (integer, pointer, pointer),
        "MPIX_Startall_enqueue": (integer, pointer),
        "MPIX_Allreduce_enqueue_c": (pointer, *buffer, handle, handle),
        "MPIX_Bcast_enqueue_c": (*buffer, integer, handle),
        "MPIX_Allgather_enqueue_c": (*buffer, *buffer, handle),
        "MPIX_Alltoall_enqueue_c": (*buffer, *buffer, handle),
        "MPIX_Reduce_scatter_block_enqueue_c": (pointer, *buffer, handle, handle),
        "MPIX_Barrier_enqueue": (handle,),
    }
    process = ctypes.CDLL(None)
    found: list[_Call] = []
    for name, arguments in prototypes.items():
        try:
            function = process[name]
        except AttributeError:
            raise RuntimeError(
                f"this process has no {name}: Awaken is not loaded, or is older than this module; "
                "run it by awaken exec (mpiexec -n 2 awaken exec python program.py)"
            ) from None
        function.argtypes = arguments
        function.restype = integer
        found.append(function)
    return _Functions(*found)


def _check(code: int) -> None:
    if code:
        raise MPI.Exception(code)


# ---- arrays ----------------------------------------------------------------------------------------------------------


class _Elements(NamedTuple):
    """How MPI is told of an array's elements."""

    handle: int  # of the datatype
    units: int  # of the datatype, in one element
    item_bytes: int
    is_number: bool  # MPI can reduce it
    name: str


_Described = tuple[int, int, _Elements]  # address, elements, their type
_Reader = Callable[[Any, bool], _Described]
_NATIVE_ORDERS = "|=<" if sys.byteorder == "little" else "|=>"
_NOT_CONTIGUOUS = (
    "the array is not contiguous: send a contiguous copy (ascontiguousarray() of NumPy and CuPy, contiguous() of "
    "PyTorch), or receive into a contiguous array and copy from that in the stream"
)


def _elements_of(typestr: str) -> _Elements:
    """Elements by the type string of NumPy's array interface. Those that MPI has no type for travel as bytes."""
    parsed = re.match(r"([|=<>])([a-zA-Z])(\d+)", typestr)
    if parsed is None or parsed[2] == "O":
        raise TypeError(f"elements of the type {typestr!r} are not plain data: pass numbers or bytes")
    item_bytes = int(parsed[3]) * (4 if parsed[2] == "U" else 1)
    if parsed[1] in _NATIVE_ORDERS and parsed[2] in "biufc":
        datatype = MPI._typedict.get(parsed[2] + parsed[3])
        if datatype is not None and datatype != MPI.DATATYPE_NULL and datatype.Get_size() == item_bytes:
            return _Elements(_handle(datatype), 1, item_bytes, True, typestr)
    return _Elements(_handle(MPI.BYTE), item_bytes, item_bytes, False, typestr)


class _NumpyElements(dict[Any, _Elements]):
    """By dtype of NumPy."""

    def __missing__(self, dtype: Any) -> _Elements:
        if dtype.hasobject:
            raise TypeError(f"elements of the type {dtype} are not plain data: pass numbers or bytes")
        self[dtype] = found = _elements_of(dtype.str)
        return found


class _InterfaceElements(dict[str, _Elements]):
    """By type string."""

    def __missing__(self, typestr: str) -> _Elements:
        self[typestr] = found = _elements_of(typestr)
        return found


_OF_NUMPY = _NumpyElements()
_OF_INTERFACE = _InterfaceElements()
_OF_TORCH: dict[Any, _Elements] = {}


def _elements_of_tensor(tensor: Any) -> _Elements:
    name = str(tensor.dtype).rpartition(".")[2]
    item_bytes = tensor.element_size()
    kinds = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bool": "b"}
    parsed = re.fullmatch(r"([a-z]+?)\d*", name)
    kind = kinds.get(parsed[1]) if parsed is not None else None
    bfloat16 = getattr(MPI, "BFLOAT16", MPI.DATATYPE_NULL)
    if kind is not None:
        found = _elements_of(f"={kind}{item_bytes}")._replace(name=name)
    elif name == "bfloat16" and bfloat16 != MPI.DATATYPE_NULL:
        found = _Elements(_handle(bfloat16), 1, item_bytes, True, name)
    else:
        found = _Elements(_handle(MPI.BYTE), item_bytes, item_bytes, False, name)
    _OF_TORCH[tensor.dtype] = found
    return found


def _refuse_read_only() -> NoReturn:
    raise ValueError("the array that receives is read-only: pass one that can be written")


def _read_numpy(array: Any, writes: bool) -> _Described:
    flags = array.flags
    if not flags.forc:
        raise ValueError(_NOT_CONTIGUOUS)
    if writes and not flags.writeable:
        _refuse_read_only()
    elements = _OF_NUMPY[array.dtype]
    return MPI.Get_address(array), array.size, elements


def _read_cupy(array: Any, writes: bool) -> _Described:
    if not array.flags.forc:
        raise ValueError(_NOT_CONTIGUOUS)
    return array.data.ptr, array.size, _OF_NUMPY[array.dtype]


def _read_tensor(tensor: Any, writes: bool) -> _Described:
    if not tensor.is_contiguous():
        raise ValueError(_NOT_CONTIGUOUS)
    elements = _OF_TORCH.get(tensor.dtype) or _elements_of_tensor(tensor)
    if elements.name.startswith("complex") and tensor.is_conj():
        raise ValueError("the tensor is conjugated only when it is read: pass tensor.resolve_conj()")
    return tensor.data_ptr(), tensor.numel(), elements


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], item_bytes: int) -> bool:
    """In C's order or in Fortran's. Strides of dimensions with one element do not matter."""
    for order in (1, -1):
        expected = item_bytes
        for length, stride in list(zip(shape, strides))[::-order]:
            if length != 1 and stride != expected:
                break
            expected *= length
        else:
            return True
    return 0 in shape


def _read_interface(array: Any, writes: bool) -> _Described:
    """https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html"""
    interface = array.__cuda_array_interface__
    address, is_read_only = interface["data"]
    shape, strides = interface["shape"], interface.get("strides")
    elements = _OF_INTERFACE[interface["typestr"]]
    if strides is not None and not _is_contiguous(shape, strides, elements.item_bytes):
        raise ValueError(_NOT_CONTIGUOUS)
    if writes and is_read_only:
        _refuse_read_only()
    if interface.get("mask") is not None:
        raise ValueError("MPI knows no masks: pass the array without its mask")
    return address or 0, math.prod(shape), elements


def _read_buffer(array: Any, writes: bool) -> _Described:
    with memoryview(array) as view:
        if not view.contiguous:
            raise ValueError(_NOT_CONTIGUOUS)
        if writes and view.readonly:
            _refuse_read_only()
        datatype = MPI._typedict.get(view.format)
        if datatype is not None and datatype != MPI.DATATYPE_NULL and datatype.Get_size() == view.itemsize:
            elements = _Elements(_handle(datatype), 1, view.itemsize, True, view.format)
        else:
            elements = _Elements(_handle(MPI.BYTE), view.itemsize, view.itemsize, False, view.format)
        return MPI.Get_address(array), view.nbytes // view.itemsize, elements


def _read_specification(specification: Any, writes: bool, blocks: int = 1) -> _Described:
    """mpi4py's forms: [array, count, datatype], with (count, displacement), or without the count or the datatype.

    The count is that of one of the `blocks`.
    """
    if not 2 <= len(specification) <= 4:
        raise ValueError("a buffer is [array, count, datatype], [array, datatype] or [array, count]")
    array, *rest = specification
    datatype = rest.pop() if rest[-1] is None or isinstance(rest[-1], (MPI.Datatype, str)) else None
    counts: list[Any] = list(rest[0]) if rest and isinstance(rest[0], (list, tuple)) else rest
    count, displacement = (*counts, None, None)[:2]
    displacement = displacement or 0
    is_absolute = array is None or array is MPI.BOTTOM
    address, items, base = (0, 0, _OF_INTERFACE["|u1"]) if is_absolute else _described(array, writes)
    length_bytes = items * base.item_bytes
    elements, low, true_extent = base, 0, base.item_bytes
    if datatype is not None:
        if isinstance(datatype, str):
            if datatype not in MPI._typedict:
                raise ValueError(f"MPI has no type {datatype!r}: pass a code as 'd', or an MPI.Datatype")
            datatype = MPI._typedict[datatype]
        extent = datatype.Get_extent()[1]
        low, true_extent = datatype.Get_true_extent()
        elements = _Elements(_handle(datatype), 1, extent, True, datatype.name)
    if count is None:
        if is_absolute or elements.item_bytes <= 0:
            raise ValueError("a buffer without an array, or with a datatype of no extent, needs a count")
        whole, odd = divmod(length_bytes, elements.item_bytes)
        count, rest_items = divmod(whole - displacement, blocks)
        if odd or rest_items:
            raise ValueError(f"{length_bytes} bytes are not {blocks} equal parts of the datatype: pass a count")
    if count < 0 or displacement < 0:
        raise ValueError("the buffer's count or displacement is negative: pass 0 or more")
    last = (displacement + count * blocks - 1) * elements.item_bytes + low + true_extent
    if not is_absolute and count > 0 and last > length_bytes:
        raise ValueError(f"the buffer has {length_bytes} bytes, and its count asks for {last}: pass a smaller count")
    return address + displacement * elements.item_bytes, count, elements


_READERS: dict[type, _Reader] = {list: _read_specification, tuple: _read_specification}


def _reader_of(array: Any) -> _Reader:
    """Decides once for a type how its arrays are read."""
    kind = type(array)
    numpy = sys.modules.get("numpy")
    package = kind.__module__.partition(".")[0]
    reader: _Reader
    if numpy is not None and isinstance(array, numpy.ndarray):
        reader = _read_numpy
    elif hasattr(kind, "data_ptr") and hasattr(kind, "element_size") and hasattr(kind, "is_contiguous"):
        reader = _read_tensor
    elif package == "cupy" and hasattr(kind, "flags"):
        reader = _read_cupy
    elif hasattr(array, "__cuda_array_interface__"):
        reader = _read_interface
    elif isinstance(array, (list, tuple)):
        reader = _read_specification
    else:
        try:
            memoryview(array).release()
        except TypeError:
            raise TypeError(
                f"a {kind.__name__} is not an array: pass one with __cuda_array_interface__, a PyTorch tensor, a "
                "buffer in host memory, or [array, count, datatype]"
            ) from None
        reader = _read_buffer
    _READERS[kind] = reader
    return reader


def _described(array: Any, writes: bool) -> _Described:
    return (_READERS.get(type(array)) or _reader_of(array))(array, writes)


def _described_in_blocks(array: Any, writes: bool, blocks: int) -> _Described:
    """With the elements of one of `blocks` equal parts."""
    if isinstance(array, (list, tuple)):
        return _read_specification(array, writes, blocks)
    address, items, elements = _described(array, writes)
    each, more = divmod(items, blocks)
    if more:
        raise ValueError(f"an array of {items} elements has no equal part for each of {blocks} ranks: pass another one")
    return address, each, elements


def _refuse_reduction(elements: _Elements) -> NoReturn:
    raise TypeError(f"MPI has no type for {elements.name}: convert the array, or pass [array, count, datatype]")


def _owner(array: Any) -> Any:
    """What must stay. The program may change a list that it has passed."""
    return array[0] if isinstance(array, (list, tuple)) else array


# ---- streams ---------------------------------------------------------------------------------------------------------


def _loaded_library(prefix: str) -> str | None:
    """The path of a library that this process has."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(prefix):
                return "/" + path
    return None


def _stream_types() -> list[str]:
    """Which type streams of this process have: the likely one first, and one only where a package says so."""
    cuda, hip = "cudaStream_t", "hipStream_t"
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.version.hip:
        return [hip]
    if torch is not None and torch.version.cuda:
        return [cuda]
    if cupy is not None:
        return [hip if cupy.cuda.runtime.is_hip else cuda]
    if not _loaded_library("libamdhip64.so"):
        return [cuda]
    return [hip, cuda] if _loaded_library("libcuda") else [hip]


def _stream_address(stream: Any) -> int:
    """Raises TypeError when the object is no stream."""
    if isinstance(stream, int):
        return stream
    about = getattr(stream, "__cuda_stream__", None)
    if about is not None:
        # CUDA Python's protocol, (version, address): a method, and a property in its first form.
        return int((about() if callable(about) else about)[1])
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        address = getattr(stream, name, None)
        if isinstance(address, int):
            return address
    raise TypeError(
        f"a {type(stream).__name__} is not a stream: pass one of CuPy or PyTorch, an object with __cuda_stream__, "
        "or the stream's address (0 is the default stream)"
    )


@contextlib.contextmanager
def _device_of(stream: Any) -> Iterator[None]:
    """Makes the device current that the stream belongs to, where its package tells that."""
    package = type(stream).__module__.partition(".")[0]
    module = sys.modules.get(package)
    if package == "torch" and module is not None:
        with module.cuda.device(stream.device):
            yield
    elif package == "cupy" and module is not None and getattr(stream, "device_id", -1) >= 0:
        with module.cuda.Device(stream.device_id):
            yield
    else:
        yield


class _Events:
    """Events of the GPU runtime, which tell how far a stream has come."""

    _NO_TIMING = 2  # cudaEventDisableTiming, hipEventDisableTiming
    _RELAXED = 2  # cudaStreamCaptureModeRelaxed, hipStreamCaptureModeRelaxed

    def __init__(self, stream_type: str, stream: Any) -> None:
        self._stream, self._address = stream, _stream_address(stream)
        pointer = ctypes.c_void_p
        if stream_type == "hipStream_t":
            library = ctypes.CDLL(_loaded_library("libamdhip64.so"))
            names = ("EventCreateWithFlags", "EventRecord", "EventQuery", "EventDestroy")
            prefix = "hip"
        else:
            library = ctypes.CDLL("libcuda.so.1")
            names = ("EventCreate", "EventRecord", "EventQuery", "EventDestroy_v2")
            prefix = "cu"
        self._create, self._record, self._query, self._destroy = (library[prefix + name] for name in names)
        self._create.argtypes = (pointer, ctypes.c_uint)
        self._record.argtypes = (pointer, pointer)
        self._query.argtypes = self._destroy.argtypes = (pointer,)
        self._ask_capture = library[f"{prefix}StreamIsCapturing"]
        self._ask_capture.argtypes = (pointer, pointer)
        self._exchange_mode = library[f"{prefix}ThreadExchangeStreamCaptureMode"]
        self._exchange_mode.argtypes = (pointer,)
        self._status, self._mode = ctypes.c_int(), ctypes.c_int(self._RELAXED)
        self._status_address, self._mode_address = ctypes.addressof(self._status), ctypes.addressof(self._mode)
        self._idle: list[int] = []

    def is_capturing(self) -> bool:
        """Whether the stream is captured into a graph, or that cannot be told."""
        return self._ask_capture(self._address, self._status_address) != 0 or self._status.value != 0

    def record(self) -> int | None:
        """An event behind what the stream has now. None where that cannot be had, as in threads without a device."""
        if self._idle:
            event = self._idle.pop()
        else:
            made = ctypes.c_void_p()
            with _device_of(self._stream):
                if self._create(ctypes.addressof(made), self._NO_TIMING) or made.value is None:
                    return None
            event = made.value
        if self._record(event, self._address):
            self._destroy(event)
            return None
        return event

    def release(self, sealed: deque[tuple[int, list[Any]]]) -> None:
        """Drops what is before events that the stream has come past."""
        passed = []
        self._exchange_mode(self._mode_address)  # a question would spoil captures of other streams
        while sealed and not self._query(sealed[0][0]):
            passed.append(sealed.popleft())
        self._exchange_mode(self._mode_address)
        self._idle += [event for event, _ in passed]

    def free(self) -> None:
        while self._idle:
            self._destroy(self._idle.pop())


# ---- the public classes ----------------------------------------------------------------------------------------------

_in_use: set[On] = set()
"""Memory of arrays must stay until the stream has come past their operations. This outlives the interpreter's end:
after that MPI_Finalize, which mpi4py calls last, waits for the streams."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_in_use))


class Request(MPI.Request):
    """What On.isend and On.irecv return.

    It is completed once: by On.wait or On.waitall, in the stream, or by mpi4py's own functions (request.Wait(),
    MPI.Request.Waitall), which wait in the program. It is null then.
    """

    __slots__ = ("_array", "_length_bytes", "_on")
    _array: Any
    _length_bytes: int
    _on: On


class On:
    """A communicator whose operations are queued in a GPU's stream.

    comm: an mpi4py communicator of one group. All its ranks make an On together. The new communicator is a copy of it,
    with the topology that it has.

    stream: a stream of CuPy or PyTorch, an object with __cuda_stream__, or an address (0: the default stream). It must
    live until free(). A stream whose package does not tell its device is of the current one. A rank that passes None
    has no stream: it calls the functions of `comm`, which match the messages that others queue. Collectives are queued
    by all ranks or by none.

    Methods have the arguments of mpi4py's functions (Send, Irecv, Allreduce, ...) and return when the operation is
    queued. Arrays are contiguous: in device memory (__cuda_array_interface__, PyTorch), in host memory (NumPy, any
    buffer), or mpi4py's [array, count, datatype]. Elements that MPI has no type for travel as bytes, and cannot be
    reduced. Sizes are in elements.

    An On keeps arrays and statuses until the stream has come past their operations, and lets go of them in a later
    call. It keeps those of operations that are captured into a graph until free(). Keep arrays yourself whose end waits
    for the GPU (by cudaFree). Datatypes may be freed after the call. Only one thread at a time calls the methods of an
    On.

    Errors: RuntimeError when the program does not run by `awaken exec`, or the On has no stream; ValueError for arrays
    that are not contiguous, are read-only or have a wrong size; TypeError for objects that are no arrays, no streams or
    no numbers; MPI.Exception for all that MPI finds. What fails after the call is the error of the next one, or of
    free().
    """

    _OPERATIONS_PER_EVENT = 32
    """An event is recorded after so many operations, or when their arrays have _BYTES_PER_EVENT bytes."""
    _BYTES_PER_EVENT = 1 << 20

    comm: MPI.Intracomm
    """The communicator with the stream. Plain calls on it wait until the stream's operations are over."""

    def __init__(self, comm: MPI.Intracomm, stream: Any) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"a {type(comm).__name__} is not a communicator of one group: pass an mpi4py MPI.Intracomm")
        self._functions = _functions()
        address = None if stream is None else _stream_address(stream)
        self._is_freed = False
        made = ctypes.c_int(_STREAM_NULL)
        kinds = (MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm)
        new: MPI.Intracomm = next((kind for kind in kinds if isinstance(comm, kind)), MPI.Intracomm)()
        with _device_of(stream):
            events = None if address is None else _Events(self._make_stream(made, address), stream)
            try:
                _check(self._functions.stream_comm_create(_handle(comm), made, _address(new)))
            finally:
                if events is not None:  # the communicator keeps the stream
                    self._functions.stream_free(ctypes.addressof(made))
        new.Set_errhandler(MPI.ERRORS_RETURN)
        self.comm = new
        self._size = new.Get_size()
        self._events = events
        self._handle = 0 if events is None else _handle(new)
        self._open: dict[int, MPI.Request] = {}  # requests that nothing has completed, by id()
        self._look_at = 64
        self._fresh: list[Any] = []  # what the operations behind the last event use
        self._fresh_bytes = 0
        self._in_graphs: list[Any] = []  # what graphs use that may be launched again
        self._sealed: deque[tuple[int, list[Any]]] = deque()  # what those before an event use
        _in_use.add(self)

    def _make_stream(self, made: ctypes.c_int, stream: int) -> str:
        """Gives the type that the library takes."""
        value = ctypes.c_void_p(stream)
        first = 0
        for stream_type in _stream_types():
            info = MPI.Info.Create()
            try:
                info.Set("type", stream_type)
                address = ctypes.addressof(value)
                _check(self._functions.info_set_hex(_handle(info), b"value", address, ctypes.sizeof(value)))
                code = self._functions.stream_create(_handle(info), ctypes.addressof(made))
            finally:
                info.Free()
            if not code:
                return stream_type
            first = first or code
        raise MPI.Exception(first)

    def free(self) -> None:
        """Waits until the stream's operations are over, and frees the communicator. Collective.

        Raises MPI.Exception when one of the operations has failed; the communicator is freed all the same.
        """
        if self._is_freed:
            return
        self._is_freed = True
        self._handle = 0
        try:
            self.comm.Free()
        except MPI.Exception:
            if self.comm != MPI.COMM_NULL:  # the call was that of an operation's error, and freed nothing
                self.comm.Free()
            raise
        finally:
            _in_use.discard(self)
            self._open.clear()
            self._fresh.clear()
            self._in_graphs.clear()
            if self._events is not None:
                self._events.release(self._sealed)
                self._sealed.clear()
                self._events.free()

    def __enter__(self) -> On:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Frees it, but not after an error: other ranks may not come to their part of the operations then."""
        if kind is None:
            self.free()

    # ---- what stays

    def _refuse(self) -> NoReturn:
        if self._is_freed:
            raise RuntimeError("this On was freed: make another one")
        raise RuntimeError("this rank has passed no stream: call the functions of On.comm")

    def _keep(self, length_bytes: int, *used: Any) -> None:
        """Until the stream has come past what it has now; for ever, while it is captured into a graph."""
        events = self._events
        assert events is not None
        if events.is_capturing():
            self._in_graphs.append(used)
            return
        self._fresh.append(used)
        self._fresh_bytes += length_bytes
        if self._fresh_bytes >= self._BYTES_PER_EVENT or len(self._fresh) >= self._OPERATIONS_PER_EVENT:
            event = events.record()
            if event is not None:
                self._sealed.append((event, self._fresh))
                self._fresh, self._fresh_bytes = [], 0
        if self._sealed and len(self._fresh) % 8 == 0:  # a question takes the driver most of a microsecond
            events.release(self._sealed)

    def _track(self, request: MPI.Request) -> None:
        """Keeps a request, and with it its array, until something completes it."""
        self._open[id(request)] = request
        if len(self._open) > self._look_at:  # mpi4py's functions leave those null that they complete
            self._open = {key: each for key, each in self._open.items() if each}
            self._look_at = 2 * len(self._open) + 64

    # ---- messages

    def send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends. What comes next in the stream finds the array free."""
        handle = self._handle or self._refuse()
        address, items, of = _described(buf, False)
        _check(self._functions.send(address, items * of.units, of.handle, dest, tag, handle))
        self._keep(items * of.item_bytes, _owner(buf))

    def recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        """Receives. What comes next in the stream finds the data; the status is set then, too."""
        handle = self._handle or self._refuse()
        address, items, of = _described(buf, True)
        told = _IGNORED if status is None else _address(status)
        _check(self._functions.recv(address, items * of.units, of.handle, source, tag, handle, told))
        self._keep(items * of.item_bytes, _owner(buf), status)

    def isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Sends what the array has when the stream comes so far. The stream does not wait."""
        handle = self._handle or self._refuse()
        address, items, of = _described(buf, False)
        request = Request()
        _check(self._functions.isend(address, items * of.units, of.handle, dest, tag, handle, _address(request)))
        return self._begun(request, buf, items * of.item_bytes)

    def irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Request:
        """Receives into the array from when the stream comes so far. The stream does not wait."""
        handle = self._handle or self._refuse()
        address, items, of = _described(buf, True)
        request = Request()
        _check(self._functions.irecv(address, items * of.units, of.handle, source, tag, handle, _address(request)))
        return self._begun(request, buf, items * of.item_bytes)

    def _begun(self, request: Request, buf: Any, length_bytes: int) -> Request:
        request._array, request._length_bytes, request._on = _owner(buf), length_bytes, self
        self._track(request)
        return request

    def start(self, requests: MPI.Prequest | Sequence[MPI.Prequest]) -> None:
        """Starts persistent requests, made by `comm.Send_init` and `comm.Recv_init`, when the stream comes so far.

        wait() or waitall() ends their round, after which they can be started again.
        """
        if not self._handle:
            self._refuse()
        together = [requests] if isinstance(requests, MPI.Request) else requests
        handles = (_Handle * len(together))(*map(_handle, together))
        _check(self._functions.startall(len(together), handles))
        for request in together:
            self._track(request)

    # ---- completion

    def wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        """The stream waits for a request of isend, irecv or start.

        A status is set when the stream has come so far; that of a send that has been copied is empty.
        """
        if not self._handle:
            self._refuse()
        self._check_request(request)
        told = _IGNORED if status is None else _address(status)
        _check(self._functions.wait(_address(request), told))
        self._completed(request, status)

    def waitall(self, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> None:
        """The stream waits for all requests. Statuses that the list lacks are added to it."""
        if statuses is not None:
            # The C function wants an array, and mpi4py's statuses are none.
            statuses += [MPI.Status() for _ in range(len(requests) - len(statuses))]
            for request, status in zip(requests, statuses):
                self.wait(request, status)
            return
        if not self._handle:
            self._refuse()
        for request in requests:
            self._check_request(request)
        handles = (_Handle * len(requests))(*map(_handle, requests))
        _check(self._functions.waitall(len(requests), handles, _IGNORED))
        for request in requests:
            self._completed(request, None)

    def _check_request(self, request: MPI.Request) -> None:
        if request and id(request) not in self._open:
            raise ValueError("nothing was queued here with the request: pass one of this On's isend, irecv or start")

    def _completed(self, request: MPI.Request, status: MPI.Status | None) -> None:
        self._open.pop(id(request), None)
        if type(request) is not Request:  # persistent: it stays, and so does its array
            self._keep(0, request, status)
        elif request:
            ctypes.memmove(_address(request), _NULL_REQUEST, len(_NULL_REQUEST))
            self._keep(request._length_bytes, request._array, status)
            del request._array

    # ---- collectives

    def barrier(self) -> None:
        """What comes next in the stream waits until all ranks' streams have come so far."""
        _check(self._functions.barrier(self._handle or self._refuse()))
        if self._sealed and self._events is not None and not self._events.is_capturing():
            self._events.release(self._sealed)

    def bcast(self, buf: Any, root: int = 0) -> None:
        """Copies the root's array to all ranks."""
        handle = self._handle or self._refuse()
        address, items, of = _described(buf, self.comm.Get_rank() != root)
        _check(self._functions.bcast(address, items * of.units, of.handle, root, handle))
        self._keep(items * of.item_bytes, _owner(buf))

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combines all ranks' arrays, which have the same shape. sendbuf: MPI.IN_PLACE, or None, takes recvbuf."""
        handle = self._handle or self._refuse()
        address, items, of = _described(recvbuf, True)
        source = self._reduced(sendbuf, items, of)
        _check(self._functions.allreduce(source, address, items * of.units, of.handle, _handle(op), handle))
        self._keep(2 * items * of.item_bytes, _owner(sendbuf), _owner(recvbuf), op)

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combines all ranks' arrays, and gives each rank one of `size` equal parts: MPI_Reduce_scatter_block.

        sendbuf: `size` times the elements of recvbuf, or MPI.IN_PLACE; then recvbuf has all parts, and gets the rank's
        own at its begin.
        """
        handle = self._handle or self._refuse()
        if _is_in_place(sendbuf):
            address, items, of = _described_in_blocks(recvbuf, True, self._size)
        else:
            address, items, of = _described(recvbuf, True)
        source = self._reduced(sendbuf, items * self._size, of)
        _check(self._functions.reduce_scatter(source, address, items * of.units, of.handle, _handle(op), handle))
        self._keep((self._size + 1) * items * of.item_bytes, _owner(sendbuf), _owner(recvbuf), op)

    def _reduced(self, sendbuf: Any, expected: int, of: _Elements) -> int:
        """The address of what a reduction reads."""
        if not of.is_number:
            _refuse_reduction(of)
        if _is_in_place(sendbuf):
            return int(MPI.IN_PLACE)
        address, items, sent = _described(sendbuf, False)
        if sent.handle != of.handle:
            raise TypeError(f"elements of the types {sent.name} and {of.name}: pass arrays of the same type")
        if items != expected:
            raise ValueError(f"sendbuf has {items} elements where recvbuf wants {expected}: pass arrays that agree")
        return address

    def allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gives all ranks' arrays to all. recvbuf: `size` times the elements of sendbuf, in the order of the ranks.

        sendbuf: MPI.IN_PLACE, or None, takes the rank's own part of recvbuf.
        """
        self._exchange(self._functions.allgather, sendbuf, recvbuf, 1)

    def alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends an equal part of sendbuf to each rank, and receives one of each, in the order of the ranks.

        sendbuf: MPI.IN_PLACE, or None, takes the parts of recvbuf.
        """
        self._exchange(self._functions.alltoall, sendbuf, recvbuf, self._size)

    def _exchange(self, function: _Call, sendbuf: Any, recvbuf: Any, blocks: int) -> None:
        handle = self._handle or self._refuse()
        address, items, of = _described_in_blocks(recvbuf, True, self._size)
        if _is_in_place(sendbuf):
            source, sent_items, sent = int(MPI.IN_PLACE), items, of
        else:
            source, sent_items, sent = _described_in_blocks(sendbuf, False, blocks)
        sent_count, count = sent_items * sent.units, items * of.units
        if sent.handle == of.handle and sent_count != count:
            raise ValueError(
                f"sendbuf has {sent_items} elements for a rank, and recvbuf {items}: pass arrays that agree"
            )
        _check(function(source, sent_count, sent.handle, address, count, of.handle, handle))
        self._keep(2 * self._size * items * of.item_bytes, _owner(sendbuf), _owner(recvbuf))


def _is_in_place(sendbuf: Any) -> bool:
    return sendbuf is None or sendbuf is MPI.IN_PLACE
