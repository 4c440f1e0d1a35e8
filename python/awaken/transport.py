# SPDX-License-Identifier: Apache-2.0
"""Whether data goes directly from GPU to GPU or through the host: by the way that the library tells, and by speed."""

from __future__ import annotations

DIRECT_PATHS = frozenset(["direct", "ccl"])
HOST_PATHS = frozenset(["ring", "staged", "staged-large"])
"""As docs/path-report.md has them; a copied message may have gone either way."""

DIRECT_OVER_HOST = 1.2
"""Messages that are so much faster than the slower direction of copies to and from the host cannot pass through it."""
STAGED_OVER_HOST = 0.5
"""Slower messages may as well go directly, and badly: a pipeline through the host reaches more."""
TELLING_RAW_OVER_HOST = 1.5
"""Unless a raw copy between the GPUs is so much faster than the host's path, speed does not tell the two apart."""


def judge(bandwidth: float, raw: float | None, host: float | None) -> tuple[str, str]:
    """Whether messages go directly from GPU to GPU ("direct"), through the host ("staged"), or cannot be told
    ("unknown"), by GB/s of messages, of a raw copy between the GPUs, and of the slower direction of the host's path."""
    if raw is None or host is None:
        return "unknown", "there is no raw copy between the GPUs to compare with"
    figures = f"{bandwidth:.1f} GB/s; a raw copy {raw:.1f}, through the host at most {host:.1f}"
    if raw < TELLING_RAW_OVER_HOST * host:
        return "unknown", f"speed does not show it here: {figures}"
    if bandwidth > DIRECT_OVER_HOST * host:
        return "direct", figures
    if bandwidth >= STAGED_OVER_HOST * host:
        return "staged", figures
    return "unknown", f"slower than either path should be: {figures}"
