# SPDX-License-Identifier: Apache-2.0
"""Descriptions of JSON, as tests state them, and comparing a value with one.

A description is a type, a tuple of alternatives, None, a list with the description of each element, or a dictionary
with the description of each value; a dictionary must have these keys and no others.
"""

from __future__ import annotations

from typing import Any

NUMBER = (int, float)


def differences(value: Any, description: Any, where: str = "") -> list[str]:
    """What in `value` is not as described."""
    if isinstance(description, tuple):
        tried = [differences(value, one, where) for one in description]
        return [] if not all(tried) else [f"{where}: {value!r} is none of {description}"]
    if isinstance(description, dict):
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        wrong = [f"{where}.{key} is missing" for key in description.keys() - value.keys()]
        wrong += [f"{where}.{key} is not described" for key in value.keys() - description.keys()]
        for key in description.keys() & value.keys():
            wrong += differences(value[key], description[key], f"{where}.{key}")
        return wrong
    if isinstance(description, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [one for at, item in enumerate(value) for one in differences(item, description[0], f"{where}[{at}]")]
    if description is None:
        return [] if value is None else [f"{where}: {value!r} is not null"]
    if description is dict:
        return [] if isinstance(value, dict) else [f"{where}: {value!r} is no object"]
    # A truth value is an int to Python, and none to the reader of a file.
    right = isinstance(value, description) and (description is bool or not isinstance(value, bool))
    return [] if right else [f"{where}: {value!r} is no {description.__name__}"]


def check(value: Any, description: Any) -> None:
    """Fails the test unless `value` is as described."""
    wrong = differences(value, description)
    assert not wrong, "\n".join(wrong[:20])
