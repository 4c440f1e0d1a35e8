# SPDX-License-Identifier: Apache-2.0
"""The command line of a command."""

from __future__ import annotations

import argparse
from typing import NoReturn

from awaken.plain_text import LONGEST_MESSAGE, clean


class Parser(argparse.ArgumentParser):
    """Quotes words that it refuses, which may be names of somebody's files, as all messages do."""

    def error(self, message: str) -> NoReturn:
        super().error(clean(message, LONGEST_MESSAGE))
