"""Awaken makes any MPI GPU-aware.

MPI programs need nothing of this package: they are run by the native command `awaken exec`. The package holds the
commands that are written in Python (`awaken COMMAND`, or `python -m awaken COMMAND`).
"""

from __future__ import annotations

__all__: list[str] = []
