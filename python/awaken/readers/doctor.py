# SPDX-License-Identifier: Apache-2.0
"""JSON of `awaken doctor --json`: schema "awaken-doctor", version 1 (docs/doctor.md). Members that are missing are
left out."""

from __future__ import annotations

from awaken import units
from awaken.readers.source import Value
from awaken.results import Conformance, Doctor, Document

SCHEMA = "awaken-doctor"
SIDES = (("native", "the MPI alone"), ("awaken", "with Awaken"))


def read(top: Value, document: Document) -> None:
    """Adds the doctor's answers, and the matrix where it was asked for, to the document."""
    emulated = top.get("emulated").text() == "yes"
    answers = [*_machine(top, document)]
    aware: dict[str, bool] = {}
    transport: dict[str, tuple[str, str]] = {}
    for side, title in SIDES:
        part = top.get(side)
        if not part.is_object:
            continue
        known = part.get("gpu_aware")
        if not known.missing:
            aware[side] = known.text() == "yes"
        answers.append(_aware(part, title, aware.get(side)))
        if part.get("transport").text() in ("direct", "staged", "unknown") and aware.get(side):
            # Why is a comparison of speeds, which those of emulated GPUs do not bear.
            why = "emulated GPUs" if emulated else part.get("why").text()
            transport[side] = (part.get("transport").text(), why)
            answers.append(_transport(part, title, why, timed=not emulated))
    answers += _between_gpus(top, timed=not emulated)
    placement = top.get("placement")
    warnings = placement.get("warnings").elements() if placement.is_object else iter(())
    answers += [("placement", warning.get("text").text(), "bad") for warning in warnings]
    advice = [
        (f"{one.get('what').text()}: {one.get('why').text()}", one.get("command").text())
        for one in top.get("advice").elements()
    ]
    for problem in top.get("problems").elements():
        answers.append((f"not found out: {problem.get('probe').text()}", problem.get("text").text(), "bad"))
    document.doctors.append(
        Doctor(
            source=document.label,
            host=top.get("host").text(),
            answers=tuple(answers),
            advice=tuple(advice),
            conformance=_matrix(top.get("matrix")),
            aware=aware,
            transport=transport,
            mpi=top.get("mpi").get("name").text() if top.get("mpi").is_object else "",
            emulated=emulated,
        )
    )


def _machine(top: Value, document: Document) -> list[tuple[str, str, str]]:
    answers = []
    mpi, gpu, launcher = top.get("mpi"), top.get("gpu"), top.get("launcher")
    if mpi.is_object:
        abi = f", ABI {mpi.get('abi').text()}" if not mpi.get("abi").missing else ""
        answers.append(("MPI", f"{mpi.get('name').text()}{abi}, {mpi.get('library').text()}", ""))
        document.manifest["mpi"] = mpi.get("name").text()
    if launcher.is_object:
        words = " ".join(word.text() for word in launcher.get("words").elements())
        answers.append(("launcher", words, ""))
    if gpu.is_object:
        found = not gpu.get("name").missing
        text = (
            f"{gpu.get('visible_devices').text('1')} x {gpu.get('name').text()}"
            if found
            else gpu.get("why_not").text("none")
        )
        answers.append(("GPU", text, "" if found else "bad"))
        if found:
            document.manifest["doctor.gpu"] = gpu.get("name").text()
    if top.get("emulated").text() == "yes":
        document.manifest["doctor.emulated"] = "emulated GPU"
    if not top.get("date").missing:
        document.manifest["date"] = top.get("date").text()
    return answers


def _aware(part: Value, title: str, known: bool | None) -> tuple[str, str, str]:
    question = f"{title}: device memory"
    if known is None:
        return question, f"not known: {part.get('why').text('no reason given')}", ""
    outcomes: dict[str, list[str]] = {}
    for cell in part.get("attempts").elements():
        outcomes.setdefault(cell.get("status").text(), []).append(
            f"{cell.get('function').text()} ({cell.get('kind').text()})"
        )
    told = "; ".join(f"{status}: {', '.join(names)}" for status, names in outcomes.items())
    return question, told or ("yes" if known else "no"), "good" if known else "bad"


def _transport(part: Value, title: str, why: str, *, timed: bool) -> tuple[str, str, str]:
    way = part.get("transport").text()
    text = f"{way} ({why})"
    latency = part.get("latency_us").number_or_none()
    if latency is not None and timed:
        text += f"; 8 B in {units.time(latency)}"
    if part.get("verified").text() == "no":
        return f"{title}: way", f"{text}; THE DATA WERE WRONG", "bad"
    return f"{title}: way", text, {"direct": "good", "staged": "bad"}.get(way, "")


def _between_gpus(top: Value, *, timed: bool) -> list[tuple[str, str, str]]:
    answers: list[tuple[str, str, str]] = []
    hardware, libraries = top.get("hardware"), top.get("libraries")
    if hardware.is_object:
        for record in hardware.get("ipc").elements():
            pair = f"IPC, rank {record.get('owner').text('?')} to {record.get('rank').text('?')}"
            speed = record.get("copy_GBps").number_or_none()
            if record.get("works").text() == "yes":
                answers.append((pair, f"works{f', {units.bandwidth(speed)}' if speed and timed else ''}", "good"))
            else:
                answers.append((pair, f"no: {record.get('why_not').text('no reason given')}", "bad"))
        peers = list(hardware.get("peer").elements())
        if peers:
            does = sum(record.get("does").text() == "yes" for record in peers)
            answers.append(
                ("peer access", f"{does} of {len(peers)} ordered pairs", "good" if does == len(peers) else "bad")
            )
    if libraries.is_object and libraries.get("ccl").is_object:
        ccl = libraries.get("ccl")
        title = ccl.get("title").text()
        answers.append(("NCCL, RCCL", title or f"none: {ccl.get('why_not').text('not asked')}", ""))
    return answers


def _matrix(matrix: Value) -> tuple[Conformance, ...]:
    if not matrix.is_object:
        return ()
    kinds = tuple(kind.text() for kind in matrix.get("kinds").elements())
    cells: dict[str, dict[tuple[str, str], tuple[str, str]]] = {side: {} for side, _ in SIDES}
    functions: dict[str, None] = {}
    for cell in matrix.get("cells").elements():
        place = (cell.get("function").text(), cell.get("kind").text())
        functions[place[0]] = None
        for side, _ in SIDES:
            outcome = cell.get(side)
            if outcome.is_object:
                cells[side][place] = (outcome.get("status").text(), outcome.get("text").text())
    kinds = kinds or tuple(dict.fromkeys(kind for _, kind in cells["native"]))
    return tuple(
        Conformance(title, tuple(functions), kinds, cells[side]) for side, title in SIDES if cells[side] and functions
    )
