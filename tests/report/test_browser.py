# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, where one is installed: it renders at both widths, fits, and asks nobody for anything."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import harness
import pytest
from awaken import html_page
from awaken.report import from_files
from test_pages import results

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed (apt-get install chromium)")


def browse(folder: Path, *words: str) -> str:
    """Runs the browser without a window. Returns what it prints."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        f"--user-data-dir={folder / 'profile'}", *words,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(name="page", scope="module")
def _page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    report = from_files([str(path) for path in results(folder)], "Awaken report")
    (folder / "page.html").write_text(html_page.page(report), encoding="utf-8")
    return folder / "page.html"


def pixels(file: Path) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of an RGB or RGBA picture whose rows are filtered as PNG allows."""
    data = file.read_bytes()
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and colour in (2, 6)
    size = 3 if colour == 2 else 4
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    stride = width * size + 1
    return width, height, [raw[row * stride : (row + 1) * stride] for row in range(height)]


@pytest.mark.parametrize(("width", "height"), [(1280, 3000), (390, 3000)])
def test_it_renders(page: Path, tmp_path: Path, width: int, height: int) -> None:
    picture = tmp_path / "picture.png"
    browse(tmp_path, f"--screenshot={picture}", f"--window-size={width},{height}", page.as_uri())
    found_width, found_height, rows = pixels(picture)
    assert (found_width, found_height) == (width, height)
    # Rows that hold more than one colour: text and charts down the whole page, not a blank or an error.
    alive = sum(len(set(row[1:])) > 8 for row in rows)
    assert alive > height / 3


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_shows_one_of_each_chart(page: Path, tmp_path: Path, width: int) -> None:
    """Measured by a script around the page, since the page has none and allows none."""
    source = html.escape(page.read_text(encoding="utf-8"), quote=True)
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"""<!DOCTYPE html><meta charset="utf-8"><body><iframe width="{width}" height="900" srcdoc="{source}"></iframe>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const charts = [...page.querySelectorAll("svg[role=img]")];
  const shown = charts.filter(chart => chart.getBoundingClientRect().width > 0);
  const folded = charts.filter(chart => chart.closest("details:not([open])"));
  const size = text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getBoundingClientRect().width
      / text.ownerSVGElement.viewBox.baseVal.width;
  const texts = shown.flatMap(chart => [...chart.querySelectorAll("text:not(.below)")]);
  document.body.textContent = "RESULT" + JSON.stringify({{
    inner: page.documentElement.clientWidth,
    needed: page.documentElement.scrollWidth,
    charts: charts.length - folded.length,
    shown: shown.filter(chart => !folded.includes(chart)).length,
    smallest: Math.min(...texts.map(size)),
    style: getComputedStyle(page.querySelector("h1")).fontSize,
  }}) + "END";
}};
</script>""",
        encoding="utf-8",
    )
    printed = browse(tmp_path, "--dump-dom", f"--window-size={width + 100},1200", frame.as_uri())
    found = re.search(r"RESULT(\{.*?\})END", html.unescape(printed))
    assert found, printed[-2000:]
    told = json.loads(found.group(1))
    assert told["needed"] <= told["inner"] == width, told
    assert told["shown"] == told["charts"] / 2 > 8, told
    assert told["smallest"] >= 9.5, told  # pixels on the screen
    assert told["style"] == ("24px" if width == 390 else "28px"), "the policy keeps the style sheet out"


def asked(page: Path, folder: Path) -> set[str]:
    """The addresses outside of this machine's files that the browser turned to, but for those of its own maker."""
    log = folder / "net.json"
    browse(folder, f"--log-net-log={log}", "--dump-dom", page.as_uri())
    found = set(re.findall(r'"url":"((?:https?|wss?|ftp):[^"]*)"', log.read_text(errors="replace")))
    return {url for url in found if not re.match(r"https?://[\w.-]*(google|gvt1|googleapis)[\w.]*\.com[/:]", url)}


def test_it_asks_nobody_for_anything(page: Path, tmp_path: Path) -> None:
    assert asked(page, tmp_path) == set()


def test_a_page_that_asks_would_be_noticed(page: Path, tmp_path: Path) -> None:
    """And the policy stops a picture that gets into the page by mistake."""
    picture = '<img src="http://127.0.0.1:9/pixel.png"></body>'
    source = page.read_text(encoding="utf-8").replace("</body>", picture)
    (tmp_path / "kept.html").write_text(source, encoding="utf-8")
    (tmp_path / "open.html").write_text(re.sub("<meta http-equiv=[^>]*>", "", source), encoding="utf-8")
    assert asked(tmp_path / "kept.html", tmp_path) == set()
    assert asked(tmp_path / "open.html", tmp_path) == {"http://127.0.0.1:9/pixel.png"}
