# SPDX-License-Identifier: Apache-2.0
"""`awaken completion`: scripts by which shells complete commands, tests and options. They are made from the tables that
also make the help, and so are the manual pages (tools/man_pages.py)."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from awaken.command_line import USAGE_ERROR, Parser
from awaken.installation import NotInstalled, required_program

RUN_PROGRAMS = ("exec", "scale")
"""Commands behind whose options a program and its own arguments stand."""

SEVERAL_WORDS = re.compile(r"[a-z0-9_.]+(\|[a-z0-9_.]+)+")
"""The argument of an option that takes one of a few words: cpu|gpu|both."""


@dataclass(frozen=True)
class Option:
    names: tuple[str, ...]  # "-m", "--message-size"
    argument: str  # "[MIN:]MAX"; empty: it takes none
    may_lack_argument: bool
    help: str

    @property
    def words(self) -> tuple[str, ...]:
        """What its argument may be, where that is one of a few words."""
        return tuple(self.argument.split("|")) if SEVERAL_WORDS.fullmatch(self.argument) else ()

    @property
    def takes_next_word(self) -> bool:
        return bool(self.argument) and not self.may_lack_argument


@dataclass(frozen=True)
class Command:
    name: str
    summary: str
    options: tuple[Option, ...]
    words: dict[str, str] = field(default_factory=dict)  # what its first argument may be, and what that means
    usage: str = ""
    description: str = ""
    epilog: str = ""


GENERAL = (
    Option(("-h", "--help"), "", False, "print the options and exit"),
    Option(("-V", "--version"), "", False, "print the version and exit"),
)
"""What every command takes."""


def parser() -> Parser:
    made = Parser(
        prog="awaken completion",
        description="Prints what makes a shell complete the commands and options of awaken.",
        epilog='For this session: eval "$(awaken completion bash)", or awaken completion fish | source.',
    )
    made.add_argument("shell", choices=sorted(SCRIPTS), help="the shell")
    return made


def run(words: Sequence[str]) -> int:
    """The command; `words` are those after `awaken completion`. Returns the exit status."""
    options = parser().parse_args(words)
    try:
        print(SCRIPTS[options.shell](commands()), end="")
    except NotInstalled as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


# ---------------------------------------------------------------------------------------------------------- the tables


def commands() -> list[Command]:
    """All commands of this installation. Raises NotInstalled."""
    listed = _told("awaken", "help", "--json")["commands"]
    summaries = {entry["name"]: entry["summary"] for entry in listed}
    words = {"help": summaries, "completion": dict.fromkeys(sorted(SCRIPTS), "")}
    found = []
    for entry in listed:
        name = entry["name"]
        described = entry
        if name == "bench":
            # An installation may come without them.
            with contextlib.suppress(NotInstalled):
                described = _told("awaken-bench", "--help", "--json")
                tests = _told("awaken-bench", "--list", "--json")["tests"]
                words[name] = {test["name"]: test["summary"] for test in tests}
        elif not entry["native"]:
            described = _described(name)
        options = [
            Option(tuple(one["names"]), one["argument"], one["may_lack_argument"], one["help"])
            for one in described.get("options", [])
        ]
        known = {spelling for option in options for spelling in option.names}
        options += [option for option in GENERAL if not known.intersection(option.names)]
        texts = {key: described.get(key) or "" for key in ("usage", "description", "epilog")}
        found.append(Command(name, entry["summary"], tuple(options), words.get(name, {}), **texts))
    return found


def _told(program: str, *words: str) -> Any:
    """What a native program prints as JSON. Raises NotInstalled."""
    command = [str(required_program(program)), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise NotInstalled(
            f"{program} prints no JSON: install Awaken again, all of one version {done.stderr.strip()}".strip()
        ) from None


def _described(name: str) -> Any:
    """The same of a command of this package."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(f"awaken.{name}").run(["--help", "--json"])
    return json.loads(printed.getvalue())


# --------------------------------------------------------------------------------------------------------- the scripts


def _quoted(text: str) -> str:
    """A word in single quotes, as bash and zsh read it."""
    return "'" + text.replace("'", "'\\''") + "'"


def _names(options: Iterable[Option]) -> list[str]:
    return [name for option in options for name in option.names]


def bash(table: Sequence[Command]) -> str:
    lines = ["# bash completion of awaken", "_awaken() {"]
    lines += [
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words= at program=0",
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f"        COMPREPLY=($(compgen -W '{' '.join(command.name for command in table)}' -- \"$word\"))",
        "        return",
        "    fi",
        "    case ${COMP_WORDS[1]} in",
    ]
    for command in table:
        lines.append(f"        {command.name})")
        if command.name in RUN_PROGRAMS:
            apart = "|".join(_names(option for option in command.options if option.takes_next_word))
            lines += [
                "            for ((at = 2; at < COMP_CWORD && program == 0; ++at)); do",
                "                case ${COMP_WORDS[at]} in",
                "                    --) program=$((at + 1)) ;;",
                f"                    {apart}) ((++at)) ;;",
                "                    -*) ;;",
                "                    *) program=$at ;;",
                "                esac",
                "            done",
                "            if ((program == 0 && at == COMP_CWORD)) && [[ $word != -* ]]; then program=$at; fi",
                "            if ((program > 0)); then",
                "                if declare -F _command_offset >/dev/null; then",
                "                    _command_offset $program",
                "                elif ((program == COMP_CWORD)); then",
                '                    COMPREPLY=($(compgen -c -- "$word"))',
                "                fi",
                "                return",
                "            fi",
            ]
        cases = [
            f"                {'|'.join(option.names)}) words='{' '.join(option.words)}' ;;"
            for option in command.options
            if option.words and option.takes_next_word
        ]
        if cases:
            lines += ["            case $before in", *cases, "            esac"]
        if command.words:
            lines.append(
                f"            if ((COMP_CWORD == 2)) && [[ $word != -* ]]; then words='{' '.join(command.words)}'; fi"
            )
        spelled = " ".join(_names(command.options))
        lines.append(f"            if [[ $word == -* ]]; then words='{spelled}'; fi ;;")
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _awaken awaken",
    ]
    return "\n".join(lines) + "\n"


def _zsh_option(option: Option) -> Iterable[str]:
    """The specifications of _arguments."""
    text = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
    label = re.sub(r"([:\\])", r"\\\1", option.argument)
    action = f"({' '.join(option.words)})" if option.words else "_files"
    for name in option.names:
        if not option.argument:
            yield _quoted(f"{name}[{text}]")
        else:
            attached = "=" if name.startswith("--") else "+"
            if option.may_lack_argument:
                attached = "=-" if name.startswith("--") else "-"
            colon = "::" if option.may_lack_argument else ":"
            yield _quoted(f"{name}{attached}[{text}]{colon}{label}:{action}")


def zsh(table: Sequence[Command]) -> str:
    lines = ["#compdef awaken", "_awaken() {", "    local -a described=("]
    lines += [f"        {_quoted(f'{command.name}:{command.summary}')}" for command in table]
    lines += [
        "    )",
        "    if ((CURRENT == 2)); then",
        "        _describe command described",
        "        return",
        "    fi",
        "    shift words",
        "    ((CURRENT--))",
        "    case $words[1] in",
    ]
    for command in table:
        specifications = [spec for option in command.options for spec in _zsh_option(option)]
        if command.name in RUN_PROGRAMS:
            specifications += ["'(-)1:program:_command_names -e'", "'*::argument:_normal'"]
        elif command.words:
            specifications += [_quoted(f":word:({' '.join(command.words)})"), "'*:file:_files'"]
        else:
            specifications.append("'*:file:_files'")
        ends = ' -A "-*"' if command.name in RUN_PROGRAMS else ""
        lines.append(f"        {command.name}) _arguments -S{ends} \\")
        lines += [f"            {spec} \\" for spec in specifications[:-1]]
        lines.append(f"            {specifications[-1]} ;;")
    lines += ["    esac", "}", "compdef _awaken awaken"]
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(table: Sequence[Command]) -> str:
    lines = ["# fish completion of awaken"]
    for command in table:
        lines.append(
            f"complete -c awaken -f -n __fish_use_subcommand -a {command.name} -d {_fish_quoted(command.summary)}"
        )
        start = f"complete -c awaken -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            spelled = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
            takes = " -r" if option.takes_next_word else ""
            words = f" -f -a {_fish_quoted(' '.join(option.words))}" if option.words else ""
            lines.append(f"{start} {' '.join(spelled)}{takes}{words} -d {_fish_quoted(option.help)}")
        first = f"complete -c awaken -f -n '__fish_seen_subcommand_from {command.name}; and __fish_is_nth_token 2'"
        lines += [
            f"{first} -a {word}" + (f" -d {_fish_quoted(meaning)}" if meaning else "")
            for word, meaning in command.words.items()
        ]
        if command.name in RUN_PROGRAMS:
            # The options behind the dashes take the next word, so that this is not the program.
            apart = " ".join(_names(option for option in command.options if option.takes_next_word))
            lines.append(f"{start} -x -a '(__fish_complete_subcommand --fcs-skip=2 -- {apart})'")
    return "\n".join(lines) + "\n"


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
