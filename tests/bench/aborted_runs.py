# SPDX-License-Identifier: Apache-2.0
"""What runs leave that are ended on purpose."""

from __future__ import annotations

from pathlib import Path

import harness


def clean_up(result: harness.Result) -> None:
    """Removes the shared memory that MPICH leaves of ranks that were aborted or killed."""
    for problem in result.problems:
        name = problem.removesuffix(" is left over")
        if name.startswith("/dev/shm/mpich_"):
            Path(name).unlink(missing_ok=True)
