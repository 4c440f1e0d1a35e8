# SPDX-License-Identifier: Apache-2.0
"""Which calls of the CUDA driver wait until all work of the device is over, work that has nothing to do with them.

    python3 tests/gpu_hardware/waiting_calls.py [--json FILE] [--seconds S] [--only TEXT]

A non-blocking stream of the process is kept busy, by a kernel or by a host function. Each call is made in a process of
its own, and waits when it has not returned after S seconds (default 3). With a call that waits under way in another
thread, each of the calls that messages need is tried too: a driver may hold a lock meanwhile. The time of a call that
returned is in microseconds and of a first call, so it includes what the driver does once. stdlib only.

Also on the emulated driver, where only host functions keep a stream busy: `awaken exec --emulate cuda:2 -- python3 ...
--busy host`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KERNELS = """
extern "C" __global__ void spin(volatile unsigned* over) { while (*over == 0) {} }
extern "C" __global__ void nothing(volatile unsigned*) {}
"""
MIB = 1 << 20
NON_BLOCKING, NO_TIMING, LAZY_PEER_ACCESS = 1, 2, 1
LEGACY = ctypes.c_void_p(1)
SUCCESS, NOT_READY = 0, 600
POSIX_FILE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_char * 64),)


class Location(ctypes.Structure):
    """CUmemLocation: a device."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of a device."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class Driver:
    """libcuda with the first device current, and what the calls need."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.libc = ctypes.CDLL(None)
        self("cuInit", 0)
        self.context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.enter()
        self.busy_stream, self.stream = self.new_stream(), self.new_stream()
        self.event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(self.event), NO_TIMING)
        self.memory = self.allocate()
        # Two semaphores of the C library, which host functions need no Python for.
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._started = ctypes.c_char.from_buffer(self._shared, 0)
        self._over = ctypes.c_char.from_buffer(self._shared, 64)
        for semaphore in (self._started, self._over):
            self.libc.sem_init(ctypes.byref(semaphore), 0, 0)

    def enter(self) -> None:
        """Makes the device current to this thread."""
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != SUCCESS:
            raise RuntimeError(f"{name} failed with code {code}")

    def new_stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream

    def allocate(self, size: int = MIB) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def pinned(self) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(16 * MIB), 0)
        return pointer

    def host_memory(self) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self.libc.posix_memalign(ctypes.byref(pointer), ctypes.c_size_t(4096), ctypes.c_size_t(16 * MIB))
        ctypes.memset(pointer, 1, 16 * MIB)
        return pointer

    def registered(self) -> ctypes.c_void_p:
        pointer = self.host_memory()
        self("cuMemHostRegister_v2", pointer, ctypes.c_size_t(16 * MIB), 0)
        return pointer

    def image(self) -> ctypes.Array[ctypes.c_char]:
        """The kernels as PTX, by NVRTC."""
        for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
            try:
                compiler = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise RuntimeError("there is no libnvrtc.so.13 or .12: put its folder into LD_LIBRARY_PATH")
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        source, options = KERNELS.encode(), (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
        compiler.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels", 0, None, None)
        if compiler.nvrtcCompileProgram(program, 1, options) != 0:
            raise RuntimeError("NVRTC does not compile the kernels")
        compiler.nvrtcGetPTXSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetPTX(program, text)
        return text

    def module(self, image: Any = None) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), image or self.image())
        return module

    def function(self, module: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def launch(self, function: ctypes.c_void_p, stream: ctypes.c_void_p, address: int) -> None:
        argument = ctypes.c_uint64(address)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        self("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)

    def host_function(self, stream: ctypes.c_void_p, name: str, semaphore: Any) -> None:
        self(
            "cuLaunchHostFunc", stream, ctypes.cast(getattr(self.libc, name), ctypes.c_void_p), ctypes.byref(semaphore)
        )

    def finish(self) -> None:
        """Copies and sees the end of it, as a message does."""
        self(
            "cuMemcpyAsync", self.memory, ctypes.c_uint64(self.memory.value + 4096), ctypes.c_size_t(4096), self.stream
        )
        self("cuEventRecord", self.event, self.stream)
        while (code := self.library.cuEventQuery(self.event)) != SUCCESS:
            if code != NOT_READY:
                raise RuntimeError(f"cuEventQuery failed with code {code}")

    def keep_busy(self, by: str) -> None:
        """Returns when the stream has begun."""
        spin = self.function(self.module(), b"spin") if by == "kernel" else None
        over = self.pinned()
        ctypes.memset(over, 0, 4)
        self.host_function(self.busy_stream, "sem_post", self._started)
        if spin is not None:
            assert over.value is not None
            self.launch(spin, self.busy_stream, over.value)
        else:
            self.host_function(self.busy_stream, "sem_wait", self._over)
        self.libc.sem_wait(ctypes.byref(self._started))


# ---- the calls: what is prepared before the stream is busy gives the call -------------------------------------------

Call = Callable[[], Any]


def ipc_handle(driver: Driver) -> Handle:
    """Of memory of another process, which lives as long as this one."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--export"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    handle = Handle()
    ctypes.memmove(ctypes.byref(handle), bytes.fromhex(process.stdout.readline()), 64)
    driver.exporter = process  # type: ignore[attr-defined]
    return handle


def ipc_open(driver: Driver, handle: Handle) -> ctypes.c_uint64:
    address = ctypes.c_uint64()
    driver("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, LAZY_PEER_ACCESS)
    return address


def physical_memory(driver: Driver) -> ctypes.c_uint64:
    """Of 2 MiB; file descriptors may export it."""
    properties = AllocationProperties(type=1, handle_types=POSIX_FILE, location=Location(1, 0))
    allocation = ctypes.c_uint64()
    driver(
        "cuMemCreate", ctypes.byref(allocation), ctypes.c_size_t(2 * MIB), ctypes.byref(properties), ctypes.c_uint64(0)
    )
    return allocation


def mapped(driver: Driver, allocation: ctypes.c_uint64) -> ctypes.c_uint64:
    address, size = ctypes.c_uint64(), ctypes.c_size_t(2 * MIB)
    driver(
        "cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)
    )
    driver("cuMemMap", address, size, ctypes.c_size_t(0), allocation, ctypes.c_uint64(0))
    access = Access(Location(1, 0), 3)
    driver("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
    driver("cuMemRelease", allocation)
    return address


def virtual_memory(driver: Driver) -> ctypes.c_uint64:
    return mapped(driver, physical_memory(driver))


def descriptor_of(driver: Driver, address: ctypes.c_uint64) -> int:
    allocation, file = ctypes.c_uint64(), ctypes.c_int(-1)
    driver("cuMemRetainAllocationHandle", ctypes.byref(allocation), ctypes.c_void_p(address.value))
    driver("cuMemExportToShareableHandle", ctypes.byref(file), allocation, POSIX_FILE, ctypes.c_uint64(0))
    driver("cuMemRelease", allocation)
    return file.value


def exporting_descriptor(driver: Driver) -> Call:
    address = virtual_memory(driver)
    return lambda: os.close(descriptor_of(driver, address))


def importing_descriptor(driver: Driver) -> Call:
    file = descriptor_of(driver, virtual_memory(driver))

    def call() -> None:
        allocation = ctypes.c_uint64()
        driver("cuMemImportFromShareableHandle", ctypes.byref(allocation), ctypes.c_void_p(file), POSIX_FILE)
        mapped(driver, allocation)

    return call


def with_stream(driver: Driver) -> Call:
    return lambda: driver("cuStreamDestroy_v2", driver.new_stream())


def with_event(driver: Driver) -> Call:
    def call() -> None:
        event = ctypes.c_void_p()
        driver("cuEventCreate", ctypes.byref(event), NO_TIMING)
        driver("cuEventDestroy_v2", event)

    return call


def from_pool(driver: Driver) -> Call:
    def call() -> None:
        address = ctypes.c_uint64()
        driver("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(MIB), driver.stream)
        driver("cuMemFreeAsync", address, driver.stream)

    return call


def library_kernel(driver: Driver, as_function: bool) -> Call:
    image = driver.image()

    def call() -> None:
        library, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
        driver("cuLibraryGetKernel", ctypes.byref(kernel), library, b"nothing")
        if as_function:
            driver("cuKernelGetFunction", ctypes.byref(function), kernel)

    return call


def peer_access(driver: Driver) -> Call:
    def call() -> None:
        other = ctypes.c_void_p()
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(other), 1)
        driver("cuCtxEnablePeerAccess", other, 0)

    return call


def small_copy(driver: Driver, name: str, to_device: bool) -> Call:
    host = ctypes.create_string_buffer(8)
    size = ctypes.c_size_t(8)
    return lambda: driver(name, driver.memory, host, size) if to_device else driver(name, host, driver.memory, size)


def with_value(prepare: Callable[[Driver], Any], name: str) -> Callable[[Driver], Call]:
    """`name` on what is prepared."""

    def make(driver: Driver) -> Call:
        value = prepare(driver)
        return lambda: driver(name, value)

    return make


def first_launch(driver: Driver) -> Call:
    function = driver.function(driver.module(), b"nothing")
    return lambda: driver.launch(function, driver.stream, driver.memory.value)


def loading(driver: Driver) -> Call:
    image = driver.image()
    return lambda: driver.module(image)


def opening(driver: Driver) -> Call:
    handle = ipc_handle(driver)
    return lambda: ipc_open(driver, handle)


def registering(driver: Driver) -> Call:
    pointer = driver.host_memory()
    return lambda: driver("cuMemHostRegister_v2", pointer, ctypes.c_size_t(16 * MIB), 0)


def unmapping(driver: Driver) -> Call:
    address = virtual_memory(driver)
    return lambda: driver("cuMemUnmap", address, ctypes.c_size_t(2 * MIB))


def pointer_attribute(driver: Driver) -> Call:
    value = ctypes.c_uint()
    return lambda: driver("cuPointerGetAttribute", ctypes.byref(value), 2, driver.memory)


def sync_memops(driver: Driver) -> Call:
    value = ctypes.c_uint(1)
    return lambda: driver("cuPointerSetAttribute", ctypes.byref(value), 6, driver.memory)


def managed(driver: Driver) -> Call:
    address = ctypes.c_uint64()
    return lambda: driver("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(MIB), 1)


def exporting(driver: Driver) -> Call:
    handle = Handle()
    return lambda: driver("cuIpcGetMemHandle", ctypes.byref(handle), driver.memory)


def in_own_context(make: Callable[[Driver], Call]) -> Callable[[Driver], Call]:
    """The call in another context of the same device, which nothing else uses."""

    def prepare(driver: Driver) -> Call:
        context = ctypes.c_void_p()
        driver("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        call = make(driver)
        driver.enter()

        def inside() -> Any:
            driver("cuCtxSetCurrent", context)
            try:
                return call()
            finally:
                driver.enter()

        return inside

    return prepare


def record_context(driver: Driver) -> Call:
    """An event that stands for all work of the context."""
    event = ctypes.c_void_p()
    driver("cuEventCreate", ctypes.byref(event), NO_TIMING)

    def call() -> str:
        driver("cuCtxRecordEvent", driver.context, event)
        return {SUCCESS: "says idle", NOT_READY: "says busy"}.get(driver.library.cuEventQuery(event), "fails")

    return call


def library_launch(driver: Driver) -> Call:
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuLibraryLoadData", ctypes.byref(library), driver.image(), None, None, 0, None, None, 0)
    driver("cuLibraryGetKernel", ctypes.byref(kernel), library, b"nothing")
    return lambda: driver.launch(kernel, driver.stream, driver.memory.value)


CLOSING = with_value(lambda driver: ipc_open(driver, ipc_handle(driver)), "cuIpcCloseMemHandle")
CALLS: dict[str, Callable[[Driver], Call]] = {
    "cuCtxSynchronize": lambda driver: lambda: driver("cuCtxSynchronize"),
    "cuMemAlloc": lambda driver: driver.allocate,
    "cuMemFree": with_value(Driver.allocate, "cuMemFree_v2"),
    "cuMemHostAlloc": lambda driver: driver.pinned,
    "cuMemFreeHost": with_value(Driver.pinned, "cuMemFreeHost"),
    "cuMemHostRegister": registering,
    "cuMemHostUnregister": with_value(Driver.registered, "cuMemHostUnregister"),
    "cuMemAllocManaged": managed,
    "cuMemAllocAsync, cuMemFreeAsync": from_pool,
    "cuMemCreate, cuMemMap, cuMemSetAccess": lambda driver: lambda: virtual_memory(driver),
    "cuMemUnmap": unmapping,
    "cuMemRetainAllocationHandle, cuMemExportToShareableHandle": exporting_descriptor,
    "cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess": importing_descriptor,
    "cuIpcGetMemHandle": exporting,
    "cuIpcOpenMemHandle": opening,
    "cuIpcCloseMemHandle": CLOSING,
    "cuIpcCloseMemHandle in an own context": in_own_context(CLOSING),
    "cuMemFree in an own context": in_own_context(with_value(Driver.allocate, "cuMemFree_v2")),
    "cuMemHostUnregister in an own context": in_own_context(with_value(Driver.registered, "cuMemHostUnregister")),
    "cuModuleLoadData in an own context": in_own_context(loading),
    "cuModuleLoadData": loading,
    "cuModuleUnload": with_value(Driver.module, "cuModuleUnload"),
    "cuLibraryLoadData, cuLibraryGetKernel": lambda driver: library_kernel(driver, False),
    "cuLibraryLoadData, cuLibraryGetKernel, cuKernelGetFunction": lambda driver: library_kernel(driver, True),
    "first launch of a kernel that is loaded": first_launch,
    "first launch of a library's kernel": library_launch,
    "cuStreamCreate, cuStreamDestroy": with_stream,
    "cuEventCreate, cuEventDestroy": with_event,
    "cuStreamQuery of the legacy stream": lambda driver: lambda: driver("cuStreamQuery", LEGACY),
    "cuCtxRecordEvent, cuEventQuery": record_context,
    "cuMemcpyHtoD": lambda driver: small_copy(driver, "cuMemcpyHtoD_v2", True),
    "cuMemcpyDtoH": lambda driver: small_copy(driver, "cuMemcpyDtoH_v2", False),
    "cuMemcpyAsync, cuEventQuery": lambda driver: driver.finish,
    "cuPointerGetAttribute": pointer_attribute,
    "cuPointerSetAttribute of SYNC_MEMOPS": sync_memops,
    "cuCtxEnablePeerAccess": peer_access,
}
BLOCKED = (
    "cuIpcCloseMemHandle in an own context",
    "cuIpcCloseMemHandle",
    "cuMemFree",
    "cuMemHostUnregister",
    "cuMemFreeHost",
    "cuModuleLoadData",
)
"""What is tried while another thread is in one that waits."""
BESIDE = (
    "cuMemcpyAsync, cuEventQuery",
    "cuPointerGetAttribute",
    "cuStreamQuery of the legacy stream",
    "cuIpcOpenMemHandle",
    "cuIpcGetMemHandle",
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "first launch of a kernel that is loaded",
    "cuStreamCreate, cuStreamDestroy",
    "cuEventCreate, cuEventDestroy",
    "cuMemcpyDtoH",
)


# ---- one call in a process of its own -------------------------------------------------------------------------------


def export() -> None:
    driver = Driver()
    handle = Handle()
    driver("cuIpcGetMemHandle", ctypes.byref(handle), driver.memory)
    sys.stdout.write(ctypes.string_at(ctypes.byref(handle), 64).hex() + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def make_one(name: str, by: str, blocked: str, seconds: float) -> None:
    """Prints "busy" when the stream is, and the microseconds of the call when it returns; ends with the process."""
    driver = Driver()
    call = CALLS[name](driver)
    driver.finish()
    hindering = CALLS[blocked](driver) if blocked else None
    driver.keep_busy(by)
    if hindering is not None:
        inside = threading.Event()

        def hinder() -> None:
            driver.enter()
            inside.set()
            hindering()
            tell("the other call returned")
            os._exit(0)

        threading.Thread(target=hinder, daemon=True).start()
        inside.wait()
        time.sleep(seconds / 6)  # nothing tells that it waits inside the driver
    tell("busy")
    start = time.perf_counter()
    answer = call()
    took = f"{(time.perf_counter() - start) * 1e6:.0f}"
    tell(f"{took} {answer}" if isinstance(answer, str) else took)
    os._exit(0)


def judge(name: str, by: str, blocked: str, seconds: float) -> str:
    """The time of the call in microseconds, "waits", or why it could not be tried."""
    words = [sys.executable, __file__, "--call", name, "--busy", by, "--blocked", blocked, "--seconds", str(seconds)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            first = process.stdout.readline().strip() if selector.select(120) else "it does not begin"
            if first != "busy":
                end_group(process)
                return first or (process.stderr.read().strip().splitlines() or ["it ends at once"])[-1]
            if not selector.select(seconds):
                return "waits"
            return process.stdout.readline().strip() or (process.stderr.read().strip().splitlines() or ["it ends"])[-1]
    finally:
        end_group(process)
        process.wait()


def end_group(process: subprocess.Popen[str]) -> None:
    """Ends a process that leads a group, and the processes that it started. Until it is waited for, its group is
    there even when it has ended; Popen.kill() and poll() may already have waited for it."""
    os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=3.0, help="after which a call is said to wait (default 3)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="calls whose names have a part like it")
    parser.add_argument("--busy", help="by this alone: kernel or host (function)")
    parser.add_argument("--export", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--call", default="", help=argparse.SUPPRESS)
    parser.add_argument("--blocked", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        export()
        return 0
    if arguments.call:
        make_one(arguments.call, arguments.busy, arguments.blocked, arguments.seconds)
        return 0
    ways = [arguments.busy] if arguments.busy else ["kernel", "host"]
    rows = [(name, by, "") for name in CALLS for by in ways]
    rows += [(name, by, blocked) for blocked in BLOCKED for name in BESIDE for by in ways]
    found = []
    for name, by, blocked in rows:
        if not re.search(arguments.only, name):
            continue
        answer = judge(name, by, blocked, arguments.seconds)
        found.append({"call": name, "busy": by, "beside": blocked, "answer": answer})
        sys.stdout.write(f"{name:60}{by:8}{blocked:40}{answer}\n")
        sys.stdout.flush()
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
