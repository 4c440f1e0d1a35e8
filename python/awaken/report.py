# SPDX-License-Identifier: Apache-2.0
"""`awaken report`: measures, or reads what was measured, and writes one page about it. docs/reports.md describes it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from awaken import html_page, input_files, jobs, markdown_page, output_files, pairs, readers, suite
from awaken.command_line import Parser
from awaken.installation import native_program
from awaken.output_files import Misuse
from awaken.readers import bench
from awaken.readers.source import ReadError, clean
from awaken.report_data import Report, differing
from awaken.results import POINT_TO_POINT, Document, Topology

DEFAULT_OUTPUT = "awaken-report.html"
DEFAULT_FOLDER = "awaken-report"
QUICK_LIMIT_S, FULL_LIMIT_S, PROBE_LIMIT_S = 120.0, 900.0, 60.0
LONGEST_LIMIT_S = 1_000_000
USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130
TOLD = re.compile(r"(?P<label>.*)@(?P<ranks>[1-9]\d{0,6})?(?::(?P<buffers>D|H|MD|MH))?")
"""LABEL@RANKS, LABEL@:BUFFERS or both; the letters are those of one side in `awaken bench`."""
TRACE_FILE = "trace.json"
TRACE_PARTS = re.compile(r"(rank|process)-\d+\.json")
"""What AWAKEN_TRACE leaves beside TRACE_FILE, which holds all of it."""

DESCRIPTION = """Writes one page about an MPI and its GPUs: HTML without script and without anything from elsewhere, or
Markdown.

Without files it measures, with all that this installation has. With files it reads them: JSON of awaken bench, of
AWAKEN_REPORT, of awaken topo and awaken doctor, traces, and logs of the OSU micro-benchmarks, nccl-tests, the Intel
MPI Benchmarks and ucc_perftest. LABEL=FILE names a file in the charts, and LABEL@RANKS:BUFFERS=FILE says what its
log does not, such as osu@4=allreduce.log or imb@:D=imb.log. Files that are labelled
by two GPUs (0-1=a.log 0-2=b.log) make a matrix. A folder is that of an earlier run, or of a trace."""
EPILOG = """Exit status: 0 when all went well, 1 when a measurement failed or a file could not be read (the page is then
written from the others) or there is no GPU to measure, 2 for wrong use, or when none of the files could be read."""


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="awaken report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "files", nargs="*", metavar="[LABEL[@RANKS][:BUFFERS]=]FILE", help="what to read; nothing: measure"
    )
    made.add_argument("-o", "--output", metavar="FILE", help=f"the page; .md for Markdown (default: {DEFAULT_OUTPUT})")
    made.add_argument("--markdown", action="store_true", help="write Markdown, whatever the file's name")
    made.add_argument(
        "--pictures", metavar="DIR", help="with Markdown: the charts as SVG files in this folder, shown by the page"
    )
    made.add_argument("--title", default="Awaken report", help="the page's title")
    group = made.add_argument_group("measuring")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="few sizes, about half a minute (default)")
    length.add_argument("--full", action="store_true", help="all sizes, more tests and the conformance matrix")
    group.add_argument(
        "--folder", metavar="DIR", help=f"keeps each measurement; a rerun goes on (default: {DEFAULT_FOLDER})"
    )
    group.add_argument("--emulate", default="", metavar="KIND:N", help="on N emulated GPUs, such as cuda:2")
    group.add_argument("--ranks", type=int, metavar="N", help="ranks of the collectives (default: 2)")
    group.add_argument(
        "--awaken", metavar="PROGRAM", help="the native program to measure with (default: the installed one)"
    )
    jobs.add_launcher_option(group)
    group.add_argument("--only", metavar="NAME,..", help="only these measurements; --list names them")
    group.add_argument("--apps", metavar="DIR", help="folder of the example programs for this MPI, to run them, too")
    group.add_argument("--time-limit", type=float, metavar="S", help="seconds that one measurement may take")
    group.add_argument("--list", action="store_true", help="list the measurements, and measure nothing")
    group.add_argument("--json", action="store_true", help="with --list: print it as JSON")
    return made


def run(words: Sequence[str]) -> int:
    """The command; `words` are those after `awaken report`. Returns the exit status."""
    options = parser().parse_args(list(words))
    output = Path(options.output or DEFAULT_OUTPUT)
    try:
        _check(options, output)
        if options.files:
            report = from_files(options.files, options.title)
            report.problems += report.failed_steps.items()
            if not report.documents and not report.failed_steps:
                told = "; ".join(f"{what}: {problem}" for what, problem in report.problems)
                raise Misuse(f"{told}: nothing could be read, so no page is written")
            interrupted = False
        else:
            plan, steps = _plan(options)
            if options.list:
                if options.json:
                    print(json.dumps([{"name": step.name, "title": step.title} for step in steps], indent=1))
                    return 0
                for step in steps:
                    print(f"{step.name:22} {step.title}")
                return 0
            jobs.leave_or_refuse("report", os.environ)
            if why_not := _why_no_gpu(plan):
                print(f"awaken: {jobs.no_gpu(why_not)}", file=sys.stderr)
                return FAILURE
            report, interrupted = measured(options, plan, steps)
    except Misuse as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    pictures = _pictures(options, output)
    # Made before the problems are told: a part of the page that cannot be made is one of them.
    page = ""
    if report.documents:
        page = markdown_page.page(report, pictures) if _is_markdown(options, output) else html_page.page(report)
    for what, problem in report.problems:
        print(f"awaken: {what}: {problem}", file=sys.stderr)
    for document in report.documents:
        for note in document.notes:
            print(f"awaken: {note}", file=sys.stderr)
    if not report.documents:
        print("awaken: nothing could be measured, so no page is written", file=sys.stderr)
        return INTERRUPTED if interrupted else FAILURE
    try:
        if pictures is not None:
            for name, content in pictures.files.items():
                output_files.write(str(Path(options.pictures) / name), content)
        output_files.write(str(output), page)
    except Misuse as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    print(f"report written: {output}", file=sys.stderr)
    if interrupted:
        return INTERRUPTED
    return FAILURE if report.problems else 0


def _is_markdown(options: argparse.Namespace, output: Path) -> bool:
    return options.markdown or output.suffix.lower() in (".md", ".markdown")


def _pictures(options: argparse.Namespace, output: Path) -> markdown_page.Pictures | None:
    """Where the page's pictures go, as its links say it: relative to the page."""
    if not options.pictures:
        return None
    return markdown_page.Pictures(quote(os.path.relpath(options.pictures, output.parent)))


def version() -> str:
    """Of the installed package; empty where it runs from a source tree."""
    try:
        return metadata.version("awaken")
    except metadata.PackageNotFoundError:
        return ""


def _check(options: argparse.Namespace, output: Path) -> None:
    if options.json and not options.list:
        raise Misuse(
            "--json is for --list: the folder of a measuring report has its results as JSON, and awaken compare, bench "
            "and doctor write theirs with --json"
        )
    if options.emulate and not jobs.EMULATION.fullmatch(options.emulate):
        raise Misuse(
            f"--emulate {options.emulate} is not a kind and number of GPUs: write for instance --emulate cuda:2"
        )
    if options.ranks is not None and options.ranks < 2:
        raise Misuse(f"--ranks {options.ranks}: collectives need at least 2")
    if options.time_limit is not None and not 0 < options.time_limit <= LONGEST_LIMIT_S:
        raise Misuse(f"--time-limit {options.time_limit}: give a number of seconds above 0, at most {LONGEST_LIMIT_S}")
    if output.suffix.lower() == ".json":
        raise Misuse(f"-o {output}: a report is HTML or Markdown, so name it .html or .md")
    if options.pictures:
        if not _is_markdown(options, output):
            raise Misuse("--pictures is for Markdown: add --markdown, or name the page .md; HTML has its charts inside")
        try:
            Path(options.pictures).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Misuse(
                f"--pictures {options.pictures} cannot be made ({error.strerror}): choose another folder"
            ) from error
    if not options.list:
        output_files.check(str(output))


# --------------------------------------------------------------------------------------------------------------- files


def from_files(words: Sequence[str], title: str) -> Report:
    """The report on files; those that cannot be read are its problems. Misuse where a word makes no sense."""
    report = Report(title, version(), [])
    for word in words:
        source = _source(word)
        if input_files.is_folder(source.path):
            steps = _earlier_steps(source.path)
            failed = {step.name: step.problem for step in steps if step.problem}
            report.failed_steps.update(failed)
            report.commands += [(step.title, f"{step.command} ({step.ended})") for step in steps]
            try:
                results = _results_in(source.path, failed)
            except OSError as error:
                report.problems.append((clean(str(source.path), 1000), error.strerror or "it cannot be listed"))
                continue
            if not results and not steps:
                report.problems.append((clean(str(source.path), 1000), "this folder has no results"))
            for file in results:
                _read(file, "", report, source)
        else:
            _read(source.path, source.label, report, source)
    _distinguish(report.documents)
    _tell_settings(report.documents)
    _pair(report.documents)
    return report


def _pair(documents: Sequence[Document]) -> None:
    """Files that are labelled by the two GPUs of their runs make a matrix of GPUs together, and so do those of
    `awaken bench`, whose manifests tell the GPUs."""
    paired, runs = [], []
    for document in documents:
        pair = pairs.of_label(document.label)
        if pair:
            document.series = [
                replace(one, pair=pair) if one.pair is None and one.test in POINT_TO_POINT else one
                for one in document.series
            ]
        here = [one for one in document.series if one.pair and (one.pair == pair or bench.SCHEMA in document.dialects)]
        paired += [document] if here else []
        runs += here
    matrices = pairs.matrices(runs)
    if matrices:
        paired[0].topologies.append(Topology("", "", matrices))


def _tell_settings(documents: Sequence[Document]) -> None:
    """Series of files that were measured with other settings say with which."""
    told: dict[str, list[str]] = {}
    for name, values in differing(documents).items():
        for value, files in values.items():
            for document in files:
                told.setdefault(document.label, []).append(f"{name}={clean(value, 60)}" if value else f"no {name}")
    for document in documents:
        settings = ", ".join(told.get(document.label, []))
        document.series = [replace(one, settings=settings) for one in document.series]


@dataclass(frozen=True)
class Source:
    """A file or folder to read, and what the user tells of it."""

    path: Path
    label: str = ""
    ranks: int | None = None
    buffers: str = ""


def _source(word: str) -> Source:
    """LABEL@RANKS:BUFFERS=FILE, unless there is a file of that very name."""
    label, equals, rest = word.partition("=")
    if not equals or "/" in label or not rest or input_files.is_there(Path(word)):
        return Source(Path(word))
    if "@" not in label:
        return Source(Path(rest), label)
    said = TOLD.fullmatch(label)
    if not said or not (said["ranks"] or said["buffers"]):
        raise Misuse(
            f"{clean(word)}: after @ come the number of ranks and the kind of buffers (D, H, MD or MH), one or both: "
            "write for instance osu@4=FILE, imb@:D=FILE or imb@4:D=FILE"
        )
    return Source(Path(rest), said["label"], int(said["ranks"]) if said["ranks"] else None, said["buffers"] or "")


def _results_in(folder: Path, failed: Container[str]) -> list[Path]:
    """The results in the folder of an earlier run or of a trace, in order of name. The log of a measurement that
    failed is none. Raises OSError."""
    found = [
        path
        for path in input_files.files_in(folder, "*.json")
        if path.name != suite.STEPS_FILE and ".part." not in path.name
    ]
    if (folder / TRACE_FILE) in found:
        found = [path for path in found if not TRACE_PARTS.fullmatch(path.name)]
    logs = [path for path in input_files.files_in(folder, "*.log") if path.with_suffix(".json") not in found]
    return found + [path for path in logs if path.stem not in failed]


def _earlier_steps(folder: Path) -> list[suite.Outcome]:
    """What an earlier run in this folder measured, and how that ended; nothing where none can be told."""
    try:
        steps = json.loads(input_files.read_text(folder / suite.STEPS_FILE, suite.LONGEST_STEPS_FILE))["steps"]
        return [
            suite.Outcome(
                clean(name),
                clean(name),
                clean(str(one.get("command", "")), 2000),
                seconds=float(one.get("seconds", 0)),
                problem=clean(str(one.get("problem", "")), 1000),
            )
            for name, one in steps.items()
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _read(path: Path, label: str, report: Report, source: Source | None = None) -> None:
    told = source is not None and (source.ranks or source.buffers)
    if not label and not told:
        # Beside itself a file would pass for a second measurement that came to the very same figures.
        for earlier in report.documents:
            with contextlib.suppress(OSError):
                if earlier.label == (_label_of(path) or clean(path.stem)) and Path(earlier.path).samefile(path):
                    earlier.notes.append(f"{clean(str(path), 400)}: given twice, read once")
                    return
    try:
        document = readers.read(path, label or _label_of(path))
    except ReadError as error:
        # The place in the error is most often the file alone, which stands before it.
        report.problems.append((clean(str(path), 1000), clean(str(error).removeprefix(f"{path}: "), 1000)))
        return
    if source is not None and told:
        document.series = [readers.told(one, source.ranks, source.buffers) for one in document.series]
    report.documents.append(document)


def _distinguish(documents: list[Document]) -> None:
    """Two files of one label cannot be told apart in a chart: the later ones get a number."""
    seen: dict[str, int] = {}
    for document in documents:
        seen[document.label] = seen.get(document.label, 0) + 1
        if seen[document.label] > 1 and any(one.source == document.label for one in document.series):
            new = f"{document.label} ({seen[document.label]})"
            document.series = [readers.relabelled(one, document.label, new) for one in document.series]
            document.label = new


# ----------------------------------------------------------------------------------------------------------- measuring


def _plan(options: argparse.Namespace) -> tuple[suite.Plan, list[suite.Step]]:
    from awaken.__main__ import COMMANDS

    program = options.awaken or native_program()
    if program is None:
        raise Misuse(
            "the program awaken is not installed: install the package again (pip install .), or give files to read"
        )
    try:
        launcher, named = jobs.launcher_words(options.launcher, os.environ, Path(program))
    except jobs.NoLauncher as error:
        raise Misuse(str(error)) from error
    apps = Path(options.apps) if options.apps else None
    if apps is not None and not input_files.is_folder(apps):
        raise Misuse(
            f"--apps {apps}: there is no such folder: give that of the built programs, such as build/release/apps/mpich"
        )
    commands = suite.native_commands(Path(program)) | frozenset(COMMANDS)
    ranks = options.ranks or max(2, named or 0)
    nodes = jobs.find_allocation(os.environ).nodes
    plan = suite.Plan(Path(program), launcher, options.emulate, options.full, ranks, apps, nodes, commands)
    try:
        steps = suite.steps(plan)
    except jobs.NoLauncher as error:
        raise Misuse(str(error)) from error
    if options.only:
        wanted = options.only.split(",")
        unknown = [name for name in wanted if name not in {step.name for step in steps}]
        if unknown:
            known = ", ".join(step.name for step in steps)
            raise Misuse(
                f"there is no measurement {unknown[0]} here: use any of {known or 'none: nothing is installed'}"
            )
        steps = [step for step in steps if step.name in wanted]
    if not steps:
        raise Misuse(
            "this installation can measure nothing: build it with -DAWAKEN_BUILD_BENCH=ON, or give files to read"
        )
    return plan, steps


def _why_no_gpu(plan: suite.Plan) -> str:
    """Why the launcher's ranks find no GPU; empty where they do, or where that cannot be asked."""
    probe = plan.awaken.resolve().parent.parent / "lib" / "awaken" / "bench" / "awaken-probe"
    if plan.emulate or os.environ.get("AWAKEN_EMULATE") or not os.access(probe, os.X_OK):
        return ""
    job = jobs.Job(plan.launched(2, (str(plan.awaken), "exec", "--", str(probe), "facts")))
    try:
        gpus = [rank["gpu"] for rank in jobs.only(job.all_records(PROBE_LIMIT_S, PROBE_LIMIT_S), "rank")]
    except jobs.JobFailed:
        return ""  # the measurements will tell
    return "" if not gpus or any("name" in gpu for gpu in gpus) else str(gpus[0].get("why_not"))


def measured(options: argparse.Namespace, plan: suite.Plan, steps: Sequence[suite.Step]) -> tuple[Report, bool]:
    """The report on a run of the suite, and whether it was interrupted."""
    folder = Path(options.folder or DEFAULT_FOLDER)
    limit_s = options.time_limit or (FULL_LIMIT_S if options.full else QUICK_LIMIT_S)
    try:
        runner = suite.Suite(folder, limit_s, suite.progress)
    except OSError as error:
        raise Misuse(f"{folder} cannot be used ({error.strerror}): choose another folder with --folder") from error
    report = Report(options.title, version(), [])
    interrupted = False
    try:
        outcomes = runner.run(steps)
    except KeyboardInterrupt:
        suite.progress("interrupted: the page is written from what is there")
        outcomes, interrupted = [], True
        for step in steps:
            for file in runner.files(step):
                _read(file, "", report)
    for outcome in outcomes:
        report.commands.append((outcome.title, f"{outcome.command} ({outcome.ended})"))
        if outcome.problem:
            report.problems.append((outcome.title, clean(outcome.problem, 1000)))
        for file in outcome.files:
            _read(file, "", report)
    return report, interrupted


def _label_of(file: Path) -> str:
    """A path report or trace that the suite asked for is called as its measurement."""
    return next((file.name[: -len(end)] for end in suite.SECONDARY if file.name.endswith(end)), "")
