# SPDX-License-Identifier: Apache-2.0
"""Being told to end: SIGTERM and SIGHUP are taken as Ctrl-C is, so that jobs end with the command that started them,
and what it has found is written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Once:
    """The handler of both signals. A second one changes nothing: timeout(1) sends two, and the command is ending."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not self._told:
            self._told = True
            raise KeyboardInterrupt(number)


def raise_for_signals() -> None:
    """From here on SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread. One that is ignored (nohup) stays
    so."""
    handler = _Once()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def exit_status(interrupt: KeyboardInterrupt) -> int:
    """What a shell makes of the signal: 130 after Ctrl-C, 143 after SIGTERM."""
    number = interrupt.args[0] if interrupt.args else signal.SIGINT
    return 128 + int(number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """What is told within comes when it is over: a process that is being started and that nobody knows yet would be
    left behind. Not by a mask of signals, which the process would inherit."""
    if threading.current_thread() is not threading.main_thread():  # the others are told nothing
        yield
        return
    told: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with contextlib.ExitStack() as stack:
            for number, handler in handlers.items():
                if callable(handler):
                    stack.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, _frame: told.append(number))
            yield
    finally:
        handler = handlers.get(signal.Signals(told[0])) if told else None
        if callable(handler):
            handler(told[0], None)
