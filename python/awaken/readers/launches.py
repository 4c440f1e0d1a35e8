# SPDX-License-Identifier: Apache-2.0
"""What the words of a launcher tell of a job, as transcripts show them: `$ srun -N 2 -n 8 ./osu_allreduce`.

The same letter means different things: -N is the number of nodes for srun and flux, and the ranks of a node for the
mpirun of Open MPI and for aprun. jsrun counts resource sets, and so tells neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_COMMAND = 1000
COMMAND = re.compile(
    r"(?:^|[\s$>#%/])(srun|mpirun|mpiexec(?:\.hydra)?|prterun|prun|aprun|flux run)(\s.*)", re.IGNORECASE
)
RANKS = re.compile(r"\s(?:-n|-np|--np|--ntasks)[ =]?(\d{1,7})(?=\s)")
NODES = re.compile(r"\s(?:-N|--nodes)[ =]?(\d{1,6})(?=\s)")
RANKS_OF_A_NODE = re.compile(
    r"\s(?:--ntasks-per-node|--tasks-per-node|--npernode|-npernode|-ppn|--ppn|ppr:)[ =]?(\d{1,6})(?=\s|:node)"
)
COUNTING_NODES = ("srun", "flux run")


@dataclass(frozen=True)
class Launch:
    """None is not told."""

    ranks: int | None = None
    nodes: int | None = None


def launch(line: str) -> Launch | None:
    """What the command in a line tells; None where there is none."""
    found = COMMAND.search(line[:LONGEST_COMMAND])
    if not found:
        return None
    words = found[2].replace("--map-by ", "").replace("-map-by ", "") + " "
    ranks, nodes, each = (_number(pattern, words) for pattern in (RANKS, NODES, RANKS_OF_A_NODE))
    if found[1].lower() not in COUNTING_NODES:
        nodes, each = None, each or nodes
    if each and nodes:
        ranks = ranks or each * nodes
    elif each and ranks:
        nodes = -(-ranks // each)
    return Launch(ranks or None, nodes or None)


def _number(pattern: re.Pattern[str], words: str) -> int | None:
    found = pattern.search(words)
    return int(found[1]) if found else None
