# SPDX-License-Identifier: Apache-2.0
"""JSON of every kind that the readers know, with anything in any place of it."""

from __future__ import annotations

import json
from typing import Any

import logs
from hypothesis import strategies as st

WHOLE = [
    logs.bench("bw", [logs.contender(name, [logs.measurement(8, 10.0)]) for name in ("awaken", "raw")]),
    logs.path_report([("MPI_Send", "direct", 3, 3000)], reason="no peer access"),
    logs.doctor(),
    logs.topology(2),
    logs.trace([(0, "MPI_Send", "direct", 100.0, 5.0)]),
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([-1.0, 0, 1e-320, 1e-12, 1e14])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, inner in members for place in places(inner, (*here, key)))][:400]


def changed(data: st.DataObject, most: int = 1) -> Any:
    """One of the files, with up to so many of its values replaced."""
    value = json.loads(json.dumps(data.draw(st.sampled_from(WHOLE))))
    for _ in range(data.draw(st.integers(1, most))):
        place = data.draw(st.sampled_from(places(value)[1:]))
        inner = value
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = data.draw(anything)
    return value
