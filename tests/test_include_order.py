# SPDX-License-Identifier: Apache-2.0
"""The folders of src use each other downwards only, in the order that CONTRIBUTING.md gives."""

from __future__ import annotations

from pathlib import Path

import include_graph

ORDER = include_graph.read_order((include_graph.ROOT / "CONTRIBUTING.md").read_text())


def test_every_folder_has_its_place() -> None:
    folders = {include_graph.folder_of(path) for path in include_graph.read_includes()}
    assert sorted(folders) == sorted(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def test_no_folder_uses_one_above_it() -> None:
    assert include_graph.upward_includes(ORDER, include_graph.read_includes()) == []


def test_files_with_and_without_mpi_are_apart() -> None:
    assert include_graph.mixed_folders(include_graph.read_includes()) == {}


def test_an_include_upwards_and_a_mixed_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "low").mkdir()
    (tmp_path / "high").mkdir()
    (tmp_path / "low" / "a.h").write_text('#include "high/b.h"\n')
    (tmp_path / "high" / "b.h").write_text("#include <mpi.h>\n")
    (tmp_path / "high" / "plain.h").write_text("// nothing\n")
    includes = include_graph.read_includes(tmp_path)
    assert include_graph.upward_includes(["low", "high"], includes, tmp_path) == [
        "low/a.h includes high/b.h: high is above low"
    ]
    assert include_graph.mixed_folders(includes, tmp_path) == {"high": ["plain.h"]}
