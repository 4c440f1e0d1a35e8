# SPDX-License-Identifier: Apache-2.0
"""The command line of a command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from awaken.installation import run_native
from awaken.plain_text import LONGEST_MESSAGE, clean

USAGE_ERROR = 2


class _Version(argparse.Action):
    """-V, --version: that of the native program, which belongs to the same installation."""

    def __call__(self, *ignored: object, **also_ignored: object) -> NoReturn:
        run_native(["version"])


class Parser(argparse.ArgumentParser):
    """As all commands of `awaken` do, it refuses a command line in one line that says what to do, knows --version, and
    describes itself for `awaken completion` and the manual pages (--help --json)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version and exit")

    def error(self, message: str) -> NoReturn:
        # It quotes words that may be names of somebody's files.
        print(f"awaken: {clean(message, LONGEST_MESSAGE)}; see `{self.prog} --help`", file=sys.stderr)
        sys.exit(USAGE_ERROR)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        if list(args) == ["--help", "--json"]:
            print(json.dumps(self.described()))
            sys.exit(0)
        parsed: argparse.Namespace = super().parse_args(args, namespace)
        return parsed

    def described(self) -> dict[str, Any]:
        """Usage, texts and options, in the form that `awaken help --json` gives options of native commands."""
        options = [
            {
                "names": list(action.option_strings),
                "argument": self._argument_of(action),
                "may_lack_argument": action.nargs == "?",
                "help": (action.help or "") % {"default": action.default, "prog": self.prog},
            }
            for action in self._actions
            if action.option_strings and action.help != argparse.SUPPRESS
        ]
        arguments = [
            f"[{self._argument_of(action)}...]" if action.nargs == "*" else self._argument_of(action)
            for action in self._actions
            if not action.option_strings and action.help != argparse.SUPPRESS
        ]
        return {
            "usage": self.usage or " ".join([self.prog, "[OPTIONS]", *arguments]),
            "description": self.description,
            "epilog": self.epilog,
            "options": options,
        }

    @staticmethod
    def _argument_of(action: argparse.Action) -> str:
        if action.nargs == 0:
            return ""
        if action.choices:
            return "|".join(map(str, action.choices))
        return str(action.metavar or action.dest.upper())
