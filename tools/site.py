# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site: `make docs` runs it after tools/docs.py.

    .venv/bin/python tools/site.py     writes build/site

MkDocs wants all pages below one folder, and the pages link to guides and files in the whole tree. So what is linked to
is copied into build/site-source, in the same places, and MkDocs (mkdocs.yml) builds that. Links are checked (strict).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "site-source"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def stage(first: Path) -> None:
    """Copies a page and, one after another, all that it and they link to."""
    waiting, seen = [first, *sorted((ROOT / "docs").rglob("*.md"))], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        target = SOURCE / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, target)
            continue
        text = path.read_text(encoding="utf-8")
        for linked in links(path, text):
            file = linked / "README.md" if linked.is_dir() else linked
            if file.is_file() and ROOT in file.parents:
                waiting.append(file)
        # Code forges read Markdown in HTML as it is; MkDocs only where it is told to (the extension md_in_html).
        text = text.replace("<details>\n", '<details markdown="1">\n')
        target.write_text(LINK.sub(partial(to_a_page, path), text), encoding="utf-8")


def links(page: Path, text: str) -> list[Path]:
    """What a page links to in the tree."""
    found = (unquote(one[2]) for one in LINK.finditer(FENCE.sub("", text)))
    return [(page.parent / one).resolve() for one in found if "://" not in one]


def to_a_page(page: Path, link: re.Match[str]) -> str:
    """A folder's page is its README.md."""
    folder = (page.parent / unquote(link[2])).resolve()
    if "://" in link[2] or not folder.is_dir():
        return link[0]
    if (folder / "README.md").is_file():
        return f"{link[1]}{link[2].rstrip('/')}/README.md{link[3]}"
    first = sorted(one.name for one in folder.iterdir())[0]
    return f"{link[1]}{link[2].rstrip('/')}/{first}{link[3]}"


def main() -> int:
    shutil.rmtree(SOURCE, ignore_errors=True)
    stage(ROOT / "README.md")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    # The theme's advertisement of its successor.
    status = subprocess.run(words, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode
    if status == 0:
        print("docs: the site is in build/site")
    return status


if __name__ == "__main__":
    sys.exit(main())
