# SPDX-License-Identifier: Apache-2.0
"""The documentation: pages that are made from data are current, links lead somewhere, lines are not too long."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import harness
import pytest

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
FOLDERS = ("apps", "bench", "docs", "emulator", "include", "python", "src", "tests", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> Iterator[str]:
    """Of its headings, as code forges make them."""
    seen: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        seen[anchor] = seen.get(anchor, -1) + 1
        yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in set(anchors(target)), f"{name(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("page", [one for one in PAGES if one.parent == ROOT or "docs" in one.parts], ids=name)
def test_lines_fit(page: Path) -> None:
    """All but rows of tables, which Markdown cannot break."""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        assert len(line) <= WIDTH or line.lstrip().startswith("|"), f"{name(page)}:{number} has {len(line)} columns"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/3-device-pointers.md"])
def test_the_first_program_is_shown_as_it_is(page: str) -> None:
    blocks = re.findall(r"^```cpp$\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    (shown,) = (block for block in blocks if "d_number" in block)
    licence, *program = (ROOT / "apps" / "examples" / "first.cpp").read_text().splitlines()
    assert "SPDX" in licence and len(program) <= 20
    program = [line.strip() for line in program]
    assert set(shown.splitlines()) <= set(program)


def test_the_graphs_program_is_shown_as_it_is() -> None:
    page = (ROOT / "docs" / "tutorial" / "9-graph.md").read_text()
    shown = "".join(re.findall(r"^```cpp$\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)).splitlines()
    program = [line.strip() for line in (ROOT / "apps" / "examples" / "graph_halo.cpp").read_text().splitlines()]
    assert shown
    assert {line.strip() for line in shown} <= set(program)


@pytest.mark.parametrize(("page", "picture"), [("2-staged", "path-staged"), ("3-device-pointers", "path-direct")])
def test_a_drawing_shows_the_steps_in_order(page: str, picture: str) -> None:
    """Each step has its number at an arrow and in front of its words, and nothing leaves the frame."""
    assert f"](../images/{picture}.svg)" in (ROOT / "docs" / "tutorial" / f"{page}.md").read_text()
    drawing = ElementTree.parse(ROOT / "docs" / "images" / f"{picture}.svg").getroot()
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    texts = [(text.text or "", float(text.attrib["x"]), float(text.attrib["y"])) for text in drawing.iter(f"{SVG}text")]
    numbers = [(int(text), x, y) for text, x, y in texts if text.isdecimal()]
    heads = list(drawing.iter(f"{SVG}polyline"))
    assert sorted(number for number, _, _ in numbers) == sorted([*range(1, len(heads) + 1)] * 2)
    steps = numbers[: len(heads)]
    assert [number for number, _, _ in sorted(steps, key=lambda one: one[2])] == list(range(1, len(heads) + 1))
    for _, x, y in steps:
        assert any(abs(y - other_y) < 6 and other_x > x and len(text) > 20 for text, other_x, other_y in texts)
    for text, x, y in texts:
        assert 0 <= x <= width and 10 <= y <= height - 4, text
        assert x > 100 or x + 0.6 * 13 * len(text) <= width, text


def check(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(tree / "tools" / "docs.py"), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=harness.HANG_S, check=False)


def test_pages_are_current_with_the_data() -> None:
    done = check(ROOT, "--check")
    assert done.returncode == 0, f"`make docs` makes them anew.\n{done.stdout}{done.stderr}"


def test_changed_data_are_noticed_and_made_into_pages(tmp_path: Path) -> None:
    for folder in ("tools", "python", "docs", "bench/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    newest = sorted((tmp_path / "bench" / "results").glob("*/*/latency.json"), key=lambda path: path.parent.name)[-1]
    text = newest.read_text()
    assert '"median_us": ' in text
    newest.write_text(re.sub(r'"median_us": [\d.]+', '"median_us": 4.25', text))
    noticed = check(tmp_path, "--check")
    assert noticed.returncode == 1 and "docs/performance.md is not current" in noticed.stdout
    assert check(tmp_path).returncode == 0
    assert "4.25 ±" in (tmp_path / "docs" / "performance-values.md").read_text()
    assert check(tmp_path, "--check").returncode == 0
    shutil.rmtree(tmp_path / "bench" / "results")
    nothing = check(tmp_path, "--check")
    assert nothing.returncode == 1 and "no measurements" in nothing.stderr
