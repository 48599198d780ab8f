# SPDX-License-Identifier: Apache-2.0
"""`frames` and `stacks` of `collectord query`: call chains with the names of `flame`."""

from __future__ import annotations

import builtins
import json
import struct
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import flame, query
from collectord.codec.perf_attr import RecordType, SampleType, SoftwareId
from collectord.codec.perf_features import ClockData, Features
from collectord.codec.perf_record import frame
from collectord.errors import UsageError
from collectord.reader import chain_tables
from collectord.reader.symbols import sample_names, symbolic_names
from tests.support.profiles import (
    ATTR,
    CGROUP_ATTR,
    KERNEL,
    USER,
    cgroup,
    comm,
    fork,
    mapped,
    sample,
    write,
)
from tests.support.programs import compile_busy, offset_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.asking import Ask, Rows

pytestmark = pytest.mark.usefixtures("own_cache")

AT: Final = 0x5000_0000_0000
UTC_NS: Final = 1_764_000_000_000_000_000


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of known functions."""
    return compile_busy(tmp_path_factory.mktemp("busy"), "-g")


def _program(busy: Path, pid: int, time_ns: int, **more: Any) -> bytes:  # noqa: ANN401
    inode = busy.stat().st_ino
    return mapped(time_ns, pid, busy, addr=AT, length=1 << 20, inode=inode, **more)


@pytest.fixture
def file(tmp_path: Path, busy: Path) -> Path:
    """Samples of two processes of a program, in stacks that are nested, and one at nothing."""
    inner, outer, main = (AT + offset_of(busy, name) for name in ("inner", "outer", "main"))
    features = Features(clock_data=ClockData(1, UTC_NS, 0))
    return write(
        tmp_path / "perf.data",
        comm(1, 50, b"shell"),
        _program(busy, 50, 2),
        fork(10, 50, 60),
        sample(20, 50, USER, inner + 2, outer + 9, main + 5),
        sample(30, 60, USER, inner + 2, outer + 9, main + 5, cpu=1),
        sample(40, 60, USER, inner + 4, outer + 9, main + 5),
        comm(45, 60, b"new", execs=True),
        sample(50, 60, USER, inner + 4, 0x10, 0x20),
        sample(60, 60, USER, inner + 2, outer + 9, main + 5),
        features=features,
    )


def test_every_address_of_every_sample_is_a_row(file: Path, ask: Ask, busy: Path) -> None:
    """With the sample that it is of, its place and its function; each in the program of then."""
    rows = ask("FROM frames ORDER BY mono_ns, position", file)
    assert len(rows) == 15
    inner = AT + offset_of(busy, "inner")
    source = str(busy.with_suffix(".c"))
    first = rows[3]
    assert first.pop("stack_id") == rows[0]["stack_id"] == rows[6]["stack_id"]
    assert rows[9]["stack_id"] != rows[0]["stack_id"]
    assert first.pop("line") > 0
    assert first == {
        "time": "2025-11-24 16:00:00.00000003",
        "mono_ns": 30,
        "cpu": 1,
        "pid": 60,
        "tid": 60,
        "comm": "shell",
        "event": "cpu-clock",
        "session": "",
        "cgroup": None,
        "position": 0,
        "address": inner + 2,
        "function": "inner",
        "offset": 2,
        "module": str(busy),
        "in_kernel": False,
        "build_id": None,
        "source": source,
        "inlined": False,
    }
    # A return address is of the call before it, and as far behind the beginning as it says.
    assert [(row["function"], row["offset"]) for row in rows[3:6]] == [
        ("inner", 2), ("outer", 9), ("main", 5)]  # fmt: skip
    assert [row["function"] for row in rows[9:]] == ["[unknown]"] * 6
    assert {row["module"] for row in rows[9:]} == {None}


def test_an_inlined_function_is_a_row_of_its_own(tmp_path: Path, busy: Path, ask: Ask) -> None:
    """Before the function that it is a part of, at the same address."""
    outer = AT + offset_of(busy, "outer")
    chains = [sample(9 + at, 50, USER, outer + at) for at in range(80)]
    path = write(tmp_path / "perf.data", comm(1, 50, b"x"), _program(busy, 50, 2), *chains)
    rows = ask("FROM frames WHERE mono_ns IN (SELECT mono_ns FROM frames WHERE inlined)", path)
    both = sorted((row for row in rows if row["mono_ns"] == rows[0]["mono_ns"]),
                  key=lambda row: row["position"])  # fmt: skip
    assert [(row["function"], row["inlined"]) for row in both] == [
        ("woven", True), ("outer", False)]  # fmt: skip
    assert both[0]["address"] == both[1]["address"]
    assert both[0]["offset"] is None


def test_a_profile_without_call_chains_has_the_address_alone(
    tmp_path: Path, busy: Path, ask: Ask
) -> None:
    """It tells where the time goes as well."""
    attr = replace(ATTR, sample_type=ATTR.sample_type & ~SampleType.CALLCHAIN)
    inner = AT + offset_of(busy, "inner")
    path = write(
        tmp_path / "perf.data",
        comm(1, 50, b"x"),
        _program(busy, 50, 2),
        sample(3, 50, inner + 1, attr=attr),
        sample(4, 50, inner + 2, attr=attr),
        attr=attr,
    )
    assert ask("SELECT stack, count FROM stacks", path) == [{"stack": "inner", "count": 2}]
    offsets = ask('SELECT position, "offset" FROM frames ORDER BY mono_ns', path)
    assert offsets == [{"position": 0, "offset": 1}, {"position": 0, "offset": 2}]


def test_stacks_are_those_of_flame(
    file: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name and number, and frames have the number of their stack."""
    rows = ask("FROM stacks", file)
    assert flame.run([str(file)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert sorted(f"{row['comm']};{row['stack']} {row['count']}" for row in rows) == sorted(told)
    assert {row["stack"]: row["count"] for row in rows} == {
        "main;outer;inner": 3, "[unknown]": 2}  # fmt: skip
    of_frames = ask(
        "SELECT s.stack, string_agg(f.function, ';' ORDER BY position DESC) AS joined "
        "FROM frames f JOIN stacks s USING (stack_id, comm) GROUP BY mono_ns, s.stack",
        file,
    )
    assert Counter(row["joined"] for row in of_frames)["main;outer;inner"] == 3
    assert {row["event"] for row in rows} == {"cpu-clock"}


def test_the_cgroup_of_a_sample_is_in_both(tmp_path: Path, busy: Path, ask: Ask) -> None:
    """A stack is a row for each of them; null where nothing tells it."""
    inner = AT + offset_of(busy, "inner")
    path = write(
        tmp_path / "perf.data",
        cgroup(0, 70, b"/one"),
        cgroup(0, 71, b"/two"),
        comm(1, 50, b"x"),
        _program(busy, 50, 2),
        *(sample(9 + at, 50, USER, inner, attr=CGROUP_ATTR, cgroup=number)
          for at, number in enumerate((70, 71, 70, 99))),
        attr=CGROUP_ATTR,
    )  # fmt: skip
    rows = ask("SELECT cgroup, stack, count FROM stacks ORDER BY count DESC, cgroup", path)
    assert [(row["cgroup"], row["count"]) for row in rows] == [("/one", 2), ("/two", 1), (None, 1)]
    assert {row["stack"] for row in rows} == {"inner"}
    rows = ask('SELECT cgroup, "function" FROM frames ORDER BY mono_ns', path)
    assert [row["cgroup"] for row in rows] == ["/one", "/two", "/one", None]
    assert {row["function"] for row in rows} == {"inner"}


def test_only_the_time_that_is_asked_for_is_read(file: Path, ask: Ask) -> None:
    """Mappings of before it name the addresses nevertheless."""
    until = "2025-11-24T16:00:00.000000035Z"
    rows = ask(
        "SELECT sum(count)::INT n, any_value(stack) stack FROM stacks", "--until", until, file
    )
    assert rows == [{"n": 2, "stack": "main;outer;inner"}]


def test_what_was_lost_is_said(
    tmp_path: Path, busy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside rows of call chains as beside others, once."""
    lost = frame(RecordType.LOST, 0, struct.pack("<QQIIQQQ", 7, 12, 50, 50, 4, 2, 7))
    inner = AT + offset_of(busy, "inner")
    records = (comm(1, 50, b"x"), _program(busy, 50, 2), sample(3, 50, USER, inner), lost)
    path = write(tmp_path / "perf.data", *records)
    assert query.run(["SELECT count(*) FROM stacks, frames", str(path)]) == 0
    told = capsys.readouterr().err
    assert told == f"collectord: 12 records of {path} were lost on CPU 2 in what was read\n"


def test_several_files_stand_alone(tmp_path: Path, file: Path, busy: Path, ask: Ask) -> None:
    """The same address is another function in each of them."""
    moved = mapped(2, 50, busy, addr=AT + 0x1000, length=1 << 20, inode=busy.stat().st_ino)
    inner = AT + offset_of(busy, "inner")
    other = write(
        tmp_path / "other.data",
        comm(1, 50, b"shell"),
        moved,
        sample(20, 50, USER, inner + 0x1002),
    )
    rows = ask("SELECT stack, sum(count)::INT n FROM stacks GROUP BY 1 ORDER BY 2", file, other)
    assert rows[-1] == {"stack": "main;outer;inner", "n": 3}
    assert {"stack": "inner", "n": 1} in rows
    assert ask("SELECT count(*) n FROM frames", file, other) == [{"n": 16}]


def test_nothing_is_named_without_need(
    file: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tables are read without the names; a table is named twice, and read once."""
    calls: list[object] = []
    names_of = sample_names.names_of

    def counted(*words: Any, **more: Any) -> Any:  # noqa: ANN401
        calls.append(words)
        return names_of(*words, **more)

    monkeypatch.setattr(chain_tables, "names_of", counted)
    assert ask("SELECT count(*) n FROM samples", file) == [{"n": 5}]
    assert not calls
    assert ask("SELECT count(*) n FROM frames, stacks", file) == [{"n": 30}]
    assert len(calls) == 1


def test_more_places_than_are_remembered(
    file: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told again, and rows are the same."""
    whole = ask("FROM frames ORDER BY mono_ns, position", file)
    monkeypatch.setattr(chain_tables, "_PLACES_MAX", 1)
    assert ask("FROM frames ORDER BY mono_ns, position", file) == whole


def test_without_symbols_functions_are_places_in_files(
    file: Path, busy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And stderr says what to install, if a table of call chains was named."""
    real_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:  # noqa: ANN401
        if name.startswith("symbolic"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    symbolic_names._symbolic.cache_clear()
    try:
        assert query.run(["SELECT function FROM frames ORDER BY mono_ns LIMIT 1", str(file)]) == 0
        told = capsys.readouterr()
        assert f"[busy+{offset_of(busy, 'inner') + 2:#x}]" in told.out
        assert "python3 -m pip install 'collectord[symbols]'" in told.err
        assert query.run(["SELECT count(*) FROM samples", str(file)]) == 0
        assert capsys.readouterr().err == ""
    finally:
        symbolic_names._symbolic.cache_clear()


def test_a_kernel_that_nothing_tells_of_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its frames are addresses."""
    path = write(tmp_path / "perf.data", sample(3, 50, KERNEL, 0xFFFF_FFFF_8100_0000))
    statement = 'SELECT "function", in_kernel, "offset" FROM frames'
    assert query.run(["--json", statement, str(path)]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "function": "[kernel+0xffffffff81000000]", "in_kernel": True, "offset": None}  # fmt: skip
    assert f"functions of the kernel have no names in 1 file, such as {path}" in told.err


def test_names_that_do_not_exist_have_a_nearest_one(file: Path) -> None:
    """A table, or a column of one."""
    for statement, near in (
        ("FROM stack", "stacks"),
        ("SELECT functions FROM frames", "function"),
        ("SELECT stack_ids FROM stacks", "stack_id"),
    ):
        with pytest.raises(UsageError) as refused:
            query.run([statement, str(file)])
        assert refused.value.hint == f'did you mean "{near}"?'


def test_an_event_of_the_same_name_has_its_system_before_it(tmp_path: Path, ask: Ask) -> None:
    """Such as one of a BPF program."""
    attr = replace(ATTR, config=SoftwareId.BPF_OUTPUT)
    path = write(tmp_path / "perf.data", event="stacks", attr=attr)
    assert ask('SELECT count(data) AS n FROM "bpf:stacks"', path) == [{"n": 0}]
    assert ask("SELECT count(stack) AS n FROM stacks", path) == [{"n": 0}]


def test_the_schema_lists_them_with_units(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each column that a row has, and what it is."""
    assert query.run(["--schema", "--json", str(file)]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    listed: dict[str, Rows] = {table: [] for table in ("frames", "stacks")}
    for one in columns:
        if one["table"] in listed:
            listed[one["table"]].append(one)
    for table, found in listed.items():
        assert query.run(["--json", f"FROM {table} LIMIT 1", str(file)]) == 0
        row = json.loads(capsys.readouterr().out)
        assert [one["column"] for one in found] == [*row]
    types = {one["column"]: one["type"] for one in listed["frames"]}
    assert types["offset"] == "bytes from the beginning of the function"
