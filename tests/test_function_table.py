# SPDX-License-Identifier: Apache-2.0
"""The table of facts about MPI functions (src/loader/functions.txt), and what is derived from names."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GENERATOR = ROOT / "src" / "loader" / "generate_functions.py"

specification = importlib.util.spec_from_file_location("generate_functions", GENERATOR)
assert specification is not None and specification.loader is not None
generate_functions = importlib.util.module_from_spec(specification)
specification.loader.exec_module(generate_functions)

NO_FACTS: dict[str, set[str]] = {word: set() for word in generate_functions.WORDS}


def read(tmp_path: Path, text: str, known: set[str] | None = None) -> dict[str, set[str]]:
    path = tmp_path / "functions.txt"
    path.write_text(text)
    facts: dict[str, set[str]] = generate_functions.read_facts(path, known)
    return facts


def test_facts_are_read(tmp_path: Path) -> None:
    facts = read(tmp_path, "# a comment\n\nbegins  Isend Start  # another\nbegins Irecv\ninquiry Comm_rank\n")
    assert facts["begins"] == {"Isend", "Start", "Irecv"} and facts["inquiry"] == {"Comm_rank"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "begins Isend\nsomewhere Irecv\n",
            r"functions.txt:2: somewhere is not a known property: use one of begins, polls",
        ),
        ("\nbegins Isned\n", r"functions.txt:2: no header declares MPI_Isned"),
        ("begins Isend\npolls Isend\n", r"functions.txt:2: Isend is named twice \(begins, polls\)"),
        ("takes Isend\ntakes Isend\n", r"functions.txt:2: Isend is named twice \(takes, takes\)"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(generate_functions.TableError, match=complaint):
        read(tmp_path, text, {"Isend", "Irecv"})


def test_a_function_may_wait_somewhere_and_be_an_inquiry(tmp_path: Path) -> None:
    assert read(tmp_path, "polls Win_get_attr\ninquiry Win_get_attr\n")["inquiry"] == {"Win_get_attr"}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("Isend", "starts"),
        ("Ialltoallw_c", "starts"),
        ("File_iread_at_all", "starts"),
        ("Comm_idup_with_info", "starts"),
        ("Rget_accumulate_c", "starts"),
        ("Comm_iflush_buffer", "starts"),
        ("Allreduce_init", "makes"),
        ("Send_init_c", "makes"),
        ("Session_init", "none"),
        ("Send", "none"),
        ("Info_create", "none"),
        ("Init_thread", "none"),
        ("Intercomm_merge", "none"),
        ("Iprobe", "none"),
        ("Is_thread_main", "none"),
        ("Reduce", "none"),
    ],
)
def test_what_a_name_tells_of_requests(name: str, role: str) -> None:
    assert generate_functions.request_role(name, NO_FACTS) == role


@pytest.mark.parametrize(
    "name", ["Comm_free", "Comm_idup_with_info", "Info_set", "Win_set_info", "File_get_info", "File_open", "Type_free"]
)
def test_functions_that_carry_no_data(name: str) -> None:
    assert generate_functions.handles_objects(name)


@pytest.mark.parametrize(
    "name", ["Send", "Barrier", "Comm_flush_buffer", "Comm_iflush_buffer", "File_read", "Win_fence", "Win_create_c"]
)
def test_functions_that_are_reported(name: str) -> None:
    assert not generate_functions.handles_objects(name)


def test_nonblocking_forms() -> None:
    names = {"Send", "Isend", "Isend_c", "Send_init_c", "Send_c", "Wait", "Sendrecv", "Isendrecv"}
    forms = {name: generate_functions.nonblocking_form(name, names) for name in names}
    assert forms["Send"] == "Isend" and forms["Send_c"] == forms["Send_init_c"] == "Isend_c"
    assert forms["Sendrecv"] == "Isendrecv" and forms["Wait"] == "Wait" and forms["Isend"] == "Isend"


def run(tmp_path: Path, declarations: str) -> subprocess.CompletedProcess[str]:
    header = tmp_path / "declarations.h"
    header.write_text(declarations)
    command = [sys.executable, str(GENERATOR), str(ROOT / "src"), str(tmp_path / "out"), f"mpich={header}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_tables_of_an_old_mpi_know_all_that_is_served(tmp_path: Path) -> None:
    """A header of MPI-3.0 knows neither MPI_Send_c nor MPI_Session_init."""
    result = run(tmp_path, "int PMPI_Send(void); int PMPI_Comm_rank(void); int PMPI_COMM_DUP_FN(void);")
    assert result.returncode == 0, result.stderr
    names = re.findall(r"AWAKEN_FUNCTION\(\d+, (\w+)\)", (tmp_path / "out" / "functions.inc").read_text())
    traits = (tmp_path / "out" / "function_traits.inc").read_text().splitlines()
    native = (tmp_path / "out" / "native_mpich.inc").read_text().splitlines()
    assert len(names) == len(traits) == len(native) and names == sorted(names)
    assert {"Send_c", "Isend", "Allreduce_init_c", "Session_init"} <= set(names)
    assert "COMM_DUP_FN" not in names
    rows = dict(zip(names, traits, strict=True))
    assert rows["Isend"] == "AWAKEN_TRAITS(nowhere, starts, false, false, Isend)"
    assert rows["Send_init"] == "AWAKEN_TRAITS(nowhere, makes, false, false, Isend)"
    assert rows["Startall"] == "AWAKEN_TRAITS(nowhere, takes, false, false, Startall)"
    assert rows["Testany"] == "AWAKEN_TRAITS(polls, takes, false, false, Testany)"
    assert rows["Send"] == "AWAKEN_TRAITS(perhaps, none, false, false, Isend)"
    assert rows["Send_c"] == "AWAKEN_TRAITS(perhaps, none, false, false, Isend_c)"
    assert rows["Waitall"] == "AWAKEN_TRAITS(perhaps, takes, false, false, Waitall)"
    assert rows["Comm_rank"] == "AWAKEN_TRAITS(perhaps, none, true, true, Comm_rank)"
    assert rows["Comm_split_type"] == "AWAKEN_TRAITS(perhaps, none, false, true, Comm_split_type)"
    assert native[names.index("Send")] == "AWAKEN_NATIVE(Send)"
    assert native[names.index("Send_c")] == "AWAKEN_ABSENT(Send_c)"


def test_what_is_no_header_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "int main(void);")
    assert result.returncode == 1 and "declares no PMPI_Send" in result.stderr
