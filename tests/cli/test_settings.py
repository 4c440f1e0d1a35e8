# SPDX-License-Identifier: Apache-2.0
"""`awaken settings`, what is refused before a program starts, and the pages about settings and figures."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

import harness
import pytest

FIGURES = (
    "copy_first_bytes", "host_offer_bytes", "network_bytes", "network_fragment_bytes", "collective_overlap_blocks",
    "collective_block_bytes", "pack_direct_bytes", "strided_pull_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """One line on stderr, with the given words in it, and nothing on stdout."""
        assert (self.status, self.out) == (2, ""), self
        assert self.err.startswith("awaken: ") and self.err.count("\n") == 1, self.err
        for word in words:
            assert word in self.err


def awaken(*words: str, **variables: str) -> Result:
    """Runs `awaken` in an environment without AWAKEN_ variables, but for those given."""
    foreign = ("AWAKEN", "LD_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [str(harness.awaken()), *words],
        env={**environment, **harness.sanitizer_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=harness.patient(harness.HANG_S),
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("words", [("tune",), ("tune", "--quick"), ("help", "tune")])
def test_nothing_measures_figures(words: tuple[str, ...]) -> None:
    awaken(*words).refused("there is no command tune", "AWAKEN_TUNE=NAME=VALUE", "docs/tuning.md")


@pytest.mark.sanitizer
def test_figures_are_listed_with_what_they_are_set_to() -> None:
    listed = awaken("settings", AWAKEN_TUNE="network_bytes=5K, copy_first_bytes=0").out
    assert re.search(r"^network_bytes = bytes.*\n    .*\n    default: 256K\n    set to:  5K$", listed, re.MULTILINE)
    assert re.search(r"^collective_overlap_blocks = number\n    .*\n    default: 64\n", listed, re.MULTILINE)


def test_switches_for_tests_are_shown_where_they_are_set() -> None:
    assert "AWAKEN_TEST" not in awaken("settings").out
    assert "\nAWAKEN_TEST_NODES = 2\n" in awaken("settings", AWAKEN_TEST_NODES="2").out


def test_wrong_figures_are_refused_before_the_program_starts() -> None:
    start = ("exec", "echo", "started")
    awaken(*start, AWAKEN_TUNE="collective_block_bytes=0").refused(
        "AWAKEN_TUNE: collective_block_bytes=0 is out of bounds: use 1 to 1G"
    )
    awaken(*start, AWAKEN_TUNE="network_byte=4").refused(
        "there is no figure network_byte", "did you mean network_bytes?"
    )
    awaken(*start, AWAKEN_TUNE="rings=4").refused("AWAKEN_TUNE: there is no figure rings", ", ".join(FIGURES))
    awaken(*start, AWAKEN_TEST_TUNE="rinsg=4").refused("AWAKEN_TEST_TUNE: there is no figure rinsg", "ring_chunks")
    awaken(*start, AWAKEN_TUNING="x").refused("AWAKEN_TUNING is not a setting", "did you mean AWAKEN_TUNE?")
    # Switched off, the layer reads none of it.
    assert awaken(*start, AWAKEN_TUNE="rings=4", AWAKEN="0").out == "started\n"


def test_every_setting_and_figure_is_documented() -> None:
    text = awaken("settings").out
    listed = dict(re.findall(r"^(\w+) = .*\n    .*\n(?:    default: (.*)\n)?", text, re.MULTILINE))
    documents = harness.ROOT / "docs"
    settings = (documents / "settings.md").read_text()
    tuning = (documents / "tuning.md").read_text()
    for name, default in listed.items():
        if not name.startswith("AWAKEN"):
            assert re.search(rf"^\| `{name}` \| {re.escape(default)} \|", tuning, re.MULTILINE), name
        else:
            row = re.search(rf"^\| `{name}` \|.*?\| (?P<values>.*?) \| (?P<default>.*?) ?\|", settings, re.MULTILINE)
            assert row is not None, name
            if name != "AWAKEN_LIBRARY":  # whose default is a place
                assert row["default"].replace("`", "") == default, name
            words = re.search(rf"^{name} = (.* \| .*)$", text, re.MULTILINE)
            if words is not None:
                assert set(words[1].split(" | ")) == set(row["values"].replace("`", "").split(", ")), name
    assert "| `AWAKEN_TEST" not in settings
    documented = re.findall(r"^\| `(\w+)` \|.*\|([^|]+)\|$", tuning, re.MULTILINE)
    figures = tuple(name for name in listed if not name.startswith("AWAKEN"))
    assert tuple(name for name, _ in documented) == figures == FIGURES
    assert all(re.search(r"H[12]00", measurement) for _, measurement in documented), documented
