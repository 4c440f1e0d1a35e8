# SPDX-License-Identifier: Apache-2.0
"""The drawings of the tutorial: which way a message takes. tools/docs.py writes them to docs/images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from awaken.svg import FAINT, Drawing

WIDTH = 560.0
COLUMN = 196.0
"""Of one rank: its GPU above its host memory."""
LEFT, RIGHT = 8.0, WIDTH - COLUMN - 8
GPU_TOP, HOST_TOP, BOX_HEIGHT = 30.0, 168.0, 84.0
GPU_BUFFER, HOST_BUFFER = GPU_TOP + 42, HOST_TOP + 12
"""Where the buffers begin, near one another: no arrow crosses the name of a memory."""
STEPS_TOP = HOST_TOP + BOX_HEIGHT + 34
BUFFER_WIDTH, BUFFER_HEIGHT = 88.0, 30.0
DATA, WORDS, SOFT = "#0064a4", "#b64a00", "#59636e"
"""Colours: of arrows that the data take, of arrows that carry words about them, and of what is only named."""
GPU_GROUND, HOST_GROUND = "#e2f3ec", "#f0f1f4"
TEXT, SMALL = 14.0, 13.0

Point = tuple[float, float]


def _frame(title: str, steps: Sequence[tuple[str, str]]) -> Drawing:
    """Two ranks with their memories, and the steps below, each in the colour of its arrow."""
    drawing = Drawing(WIDTH, STEPS_TOP + 24 * len(steps), title)
    for rank, left in enumerate((LEFT, RIGHT)):
        drawing.text(left + COLUMN / 2, 18, f"rank {rank}", TEXT, "middle", bold=True)
        for top, ground, base, name in (
            (GPU_TOP, GPU_GROUND, GPU_TOP + 24, f"device memory of GPU {rank}"),
            (HOST_TOP, HOST_GROUND, HOST_TOP + 68, f"host memory of rank {rank}"),
        ):
            drawing.rectangle(left, top, COLUMN, BOX_HEIGHT, SOFT)
            drawing.rectangle(left + 1, top + 1, COLUMN - 2, BOX_HEIGHT - 2, ground)
            drawing.text(left + COLUMN / 2, base, name, SMALL, "middle")
    for index, (text, colour) in enumerate(steps):
        y = STEPS_TOP + 24 * index
        _number(drawing, 20, y - 5, index + 1, text, colour)
        drawing.text(40, y, text, SMALL)
    return drawing


def _number(drawing: Drawing, x: float, y: float, number: int, text: str, colour: str) -> None:
    drawing.dot(x, y, 10, colour, text)
    drawing.text(x, y + 5, str(number), TEXT, "middle", "#ffffff", bold=True)


def _buffer(drawing: Drawing, column: float, y: float, name: str) -> None:
    x = column + (COLUMN - BUFFER_WIDTH) / 2
    drawing.rectangle(x, y, BUFFER_WIDTH, BUFFER_HEIGHT, DATA)
    drawing.rectangle(x + 1.5, y + 1.5, BUFFER_WIDTH - 3, BUFFER_HEIGHT - 3, "#ffffff")
    drawing.text(x + BUFFER_WIDTH / 2, y + 20, name, TEXT, "middle", bold=True)


def _arrow(drawing: Drawing, begin: Point, end: Point, colour: str, width: float, dashes: str = "") -> None:
    """With an open head."""
    angle = math.atan2(end[1] - begin[1], end[0] - begin[0])
    drawing.line(*begin, *end, colour, width, dashes)
    head = [
        (end[0] - 12 * math.cos(angle + side), end[1] - 12 * math.sin(angle + side))
        for side in (math.pi / 6, -math.pi / 6)
    ]
    drawing.path([head[0], end, head[1]], colour, width)


def staged() -> Drawing:
    """The program copies each message through host memory."""
    steps = (
        ("hipMemcpy, device to host: into memory that the CPU can read", DATA),
        ("MPI_Send and MPI_Recv: the MPI moves the bytes between the ranks", DATA),
        ("hipMemcpy, host to device: into the memory of the other GPU", DATA),
    )
    drawing = _frame("A message that the program stages through host memory", steps)
    drawing.line(LEFT + COLUMN, GPU_BUFFER + 15, RIGHT, GPU_BUFFER + 15, FAINT, 3, "6 5")
    drawing.text(WIDTH / 2, GPU_BUFFER + 5, "link: not used", SMALL, "middle", SOFT)
    for column in (LEFT, RIGHT):
        _buffer(drawing, column, GPU_BUFFER, "d_A")
        _buffer(drawing, column, HOST_BUFFER, "A")
    upper, lower = GPU_BUFFER + BUFFER_HEIGHT, HOST_BUFFER
    sending, receiving = LEFT + COLUMN / 2, RIGHT + COLUMN / 2
    half = BUFFER_WIDTH / 2
    middle = (GPU_TOP + BOX_HEIGHT + HOST_TOP) / 2
    _arrow(drawing, (sending, upper), (sending, lower), DATA, 3)
    _arrow(drawing, (sending + half, lower + 15), (receiving - half, lower + 15), DATA, 3)
    _arrow(drawing, (receiving, lower), (receiving, upper), DATA, 3)
    _number(drawing, sending, middle, 1, steps[0][0], DATA)
    _number(drawing, WIDTH / 2, lower + 15, 2, steps[1][0], DATA)
    _number(drawing, receiving, middle, 3, steps[2][0], DATA)
    drawing.text(sending - 16, middle + 5, "hipMemcpy", SMALL, "end")
    drawing.text(receiving + 16, middle + 5, "hipMemcpy", SMALL)
    drawing.text(WIDTH / 2, lower - 6, "the MPI", SMALL, "middle")
    return drawing


def direct() -> Drawing:
    """The receiver's GPU reads the sender's memory."""
    steps = (
        ("MPI_Send: a short message of the MPI says where the data lie", WORDS),
        ("MPI_Recv: GPU 1 reads them over the link, in one copy", DATA),
        ("rank 1 tells in shared memory that it has them; MPI_Send is over", WORDS),
    )
    drawing = _frame("A message whose data go from GPU to GPU", steps)
    for column in (LEFT, RIGHT):
        _buffer(drawing, column, GPU_BUFFER, "d_buffer")
        drawing.text(column + COLUMN / 2, HOST_BUFFER + 20, "no data", SMALL, "middle", SOFT)
    half = BUFFER_WIDTH / 2
    y = GPU_BUFFER + 15
    _arrow(drawing, (LEFT + COLUMN / 2 + half, y), (RIGHT + COLUMN / 2 - half, y), DATA, 3)
    _number(drawing, WIDTH / 2, y, 2, steps[1][0], DATA)
    drawing.text(WIDTH / 2, y - 20, "link", SMALL, "middle")
    for number, begin, end, at in ((1, LEFT + COLUMN, RIGHT, HOST_TOP + 26), (3, RIGHT, LEFT + COLUMN, HOST_TOP + 60)):
        _arrow(drawing, (begin, at), (end, at), WORDS, 2, "5 4")
        _number(drawing, WIDTH / 2, at, number, steps[number - 1][0], WORDS)
    return drawing


def pictures() -> dict[str, str]:
    """Name of the file -> its content."""
    return {"path-staged.svg": staged().document(), "path-direct.svg": direct().document()}
