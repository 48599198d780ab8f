# SPDX-License-Identifier: Apache-2.0
"""`collectord events` on samples: functions, their offsets and files, and cgroups."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import events, query
from collectord.codec.perf_attr import SampleType
from collectord.reader import chain_texts
from collectord.reader.symbols import symbolic_names
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
from tests.support.query_files import switches, write_trace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_cache")

AT: Final = 0x5000_0000_0000


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of known functions, whose path CSV must quote."""
    return compile_busy(tmp_path_factory.mktemp("busy"), "-g", name='bu"sy')


@pytest.fixture
def file(tmp_path: Path, busy: Path) -> Path:
    """The same addresses in a program, in its child, and in another program of the child."""
    inner, main = (AT + offset_of(busy, name) for name in ("inner", "main"))
    chain = (USER, inner + 2, main, 0x10)  # `outer` ends before `main` begins
    return write(
        tmp_path / "perf.data",
        comm(1, 50, b"sh"),
        mapped(2, 50, busy, addr=AT, length=1 << 20, inode=busy.stat().st_ino),
        fork(10, 50, 60),
        sample(20, 50, *chain),
        sample(30, 60, *chain),
        comm(40, 60, b"new", execs=True),
        mapped(41, 60, "/nowhere/lib.so", addr=AT, length=1 << 20, pgoff=0x1000),
        sample(50, 60, *chain),
    )


@pytest.fixture
def chains(busy: Path) -> list[list[str]]:
    """The names for the samples of the file."""
    size = offset_of(busy, "main") - offset_of(busy, "outer")
    named = [f"inner+0x2 ({busy})", f"outer+{size:#x} ({busy})", "0x10"]
    places = (offset_of(busy, "inner") + 2, offset_of(busy, "main") - 1)
    return [named, named, [*(f"[lib.so+{one + 0x1000:#x}]" for one in places), "0x10"]]


def _printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert events.run([*map(str, words)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def test_text_has_the_functions_from_the_innermost_on(
    file: Path, chains: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each address is what it was in that process at that time; one at nothing is a number."""
    lines = _printed(capsys, file).splitlines()
    assert [line.partition(" callchain=")[2] for line in lines] == [
        f"[{' <- '.join(one)}]" for one in chains
    ]


def test_json_has_them_beside_the_addresses(
    file: Path, chains: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A name for each function, and the numbers as before."""
    rows = [json.loads(line) for line in _printed(capsys, "--json", file).splitlines()]
    assert [row["frames"] for row in rows] == chains
    assert {len(row["callchain"]) for row in rows} == {3}
    assert {row["callchain"][2] for row in rows} == {0x10}


def test_csv_has_a_column_of_them(
    file: Path, chains: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind all others, quoted as CSV has it."""
    rows = [*csv.DictReader(io.StringIO(_printed(capsys, "-o", "csv", file)))]
    assert [row["frames"] for row in rows] == [" <- ".join(one) for one in chains]
    assert [*rows[0]][-2:] == ["callchain", "frames"]


def test_an_inlined_function_says_so(
    tmp_path: Path, busy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no place of its own in the file."""
    outer = AT + offset_of(busy, "outer")
    program = mapped(2, 50, busy, addr=AT, length=1 << 20, inode=busy.stat().st_ino)
    path = write(
        tmp_path / "perf.data",
        comm(1, 50, b"x"),
        program,
        *(sample(9 + at, 50, USER, outer + at) for at in range(80)),
    )
    lines = _printed(capsys, path).splitlines()
    assert any(
        line.endswith(f"callchain=[woven (inlined) <- outer+{at:#x} ({busy})]")
        for at, line in enumerate(lines)
    )


def test_the_part_of_the_kernel_is_told_apart(
    tmp_path: Path, busy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first address behind it is where the program was, and no return address."""
    inner, main = (AT + offset_of(busy, name) for name in ("inner", "main"))
    of_kernel = (KERNEL, 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_0100)
    program = mapped(2, 50, busy, addr=AT, length=1 << 20, inode=busy.stat().st_ino)
    chain = (*of_kernel, USER, main, inner + 3)
    path = write(tmp_path / "perf.data", comm(1, 50, b"x"), program, sample(9, 50, *chain))
    assert events.run(["--json", str(path)]) == 0
    told = capsys.readouterr()
    first, second, *named = json.loads(told.out)["frames"]
    assert (first, second) == ("0xffffffff81000000", "0xffffffff81000100")
    assert named == [f"main+0x0 ({busy})", f"inner+0x3 ({busy})"]
    assert f"functions of the kernel have no names in 1 file, such as {path}" in told.err


@pytest.fixture
def flat(tmp_path: Path, busy: Path) -> Path:
    """Samples of an address each: at a function, within a return's reach of it, and at nothing."""
    attr = replace(ATTR, sample_type=ATTR.sample_type & ~SampleType.CALLCHAIN)
    main = AT + offset_of(busy, "main")
    program = mapped(2, 50, busy, addr=AT, length=1 << 20, inode=busy.stat().st_ino)
    ips = (main, main + 3, 0x10)
    samples = [sample(9 + at, 50, ip, attr=attr) for at, ip in enumerate(ips)]
    return write(tmp_path / "perf.data", comm(1, 50, b"x"), program, *samples, attr=attr)


def test_a_sample_without_a_call_chain_is_at_a_function(
    flat: Path, busy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its address is where the program was, which no return made: it is not one byte earlier."""
    named = [f"main+0x0 ({busy})", f"main+0x3 ({busy})", "0x10"]
    lines = _printed(capsys, flat).splitlines()
    assert [line.partition(": ")[2].strip() for line in lines] == [
        f"ip={name} period=1" for name in named
    ]
    rows = [json.loads(line) for line in _printed(capsys, "--json", flat).splitlines()]
    assert [row["frames"] for row in rows] == [[name] for name in named]
    assert rows[2]["fields"] == {"ip": 0x10, "period": 1}
    cells = [*csv.DictReader(io.StringIO(_printed(capsys, "-o", "csv", flat)))]
    assert [row["frames"] for row in cells] == named
    assert [*cells[0]][-3:] == ["ip", "period", "frames"]
    assert cells[2]["ip"] == "16"
    kept = _printed(capsys, "--filter", "ip < 17", flat).splitlines()
    assert [line.partition("ip=")[2] for line in kept] == ["0x10 period=1"]


def test_beside_a_call_chain_the_address_is_a_number(
    file: Path, busy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chain begins with it."""
    line = _printed(capsys, "-n", "1", file)
    inner = AT + offset_of(busy, "inner") + 2
    assert f" ip={inner:#x} period=1 callchain=[inner+0x2 ({busy}) <- " in line


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """Samples of two cgroups, and one of which nothing tells the path."""
    return write(
        tmp_path / "placed.data",
        cgroup(0, 70, b"/one,two"),
        cgroup(1, 71, b"/three"),
        cgroup(2, 70, b"/later"),
        comm(3, 50, b"x"),
        *(sample(9 + at, 50, USER, 0x10, attr=CGROUP_ATTR, cgroup=number)
          for at, number in enumerate((70, 71, 99))),
        attr=CGROUP_ATTR,
    )  # fmt: skip


def test_data_have_the_cgroups_of_samples(
    placed: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that `samples` of `query` has; where none was recorded there is no such thing."""
    paths = ["/one,two", "/three", None]
    rows = [json.loads(line) for line in _printed(capsys, "--json", placed).splitlines()]
    assert [row["cgroup"] for row in rows] == paths
    assert [*rows[0]][4:7] == ["comm", "cgroup", "event"]
    cells = [*csv.DictReader(io.StringIO(_printed(capsys, "-o", "csv", placed, file)))]
    assert [row["cgroup"] for row in cells] == [*(path or "" for path in paths), "", "", ""]
    assert [*cells[0]][5:7] == ["event", "cgroup"]
    assert query.run(["--json", "SELECT cgroup FROM samples ORDER BY mono_ns", str(placed)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["cgroup"] for line in told] == paths
    assert "cgroup" not in _printed(capsys, "--json", file)
    assert "cgroup" not in _printed(capsys, "-o", "csv", file)


def test_the_number_of_lines_and_the_time_bound_what_is_named(
    file: Path, chains: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both do it as before."""
    rows = [json.loads(line) for line in _printed(capsys, "--json", "-n", "1", file).splitlines()]
    assert [row["frames"] for row in rows] == chains[:1]


def test_more_chains_than_are_remembered(
    file: Path,
    chains: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are named anew."""
    monkeypatch.setattr(chain_texts, "_TEXTS_MAX", 1)
    rows = [json.loads(line) for line in _printed(capsys, "--json", file).splitlines()]
    assert [row["frames"] for row in rows] == chains


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_without_duckdb_there_are_addresses(
    file: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And stderr says what to install."""
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:  # noqa: ANN401
        return None if name == "duckdb" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert events.run(["-o", form, str(file)]) == 0
    told = capsys.readouterr()
    assert told.err == (
        "collectord: functions have no names without DuckDB; "
        "python3 -m pip install 'collectord[query,symbols]'\n"
    )
    assert "frames" not in told.out
    assert {"text": ",0x10]", "json": ",16]}", "csv": ',16]"'}[form] in told.out


def test_without_symbols_there_are_places_in_files(
    file: Path, busy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And stderr says what to install."""
    monkeypatch.setattr(symbolic_names, "_symbolic", lambda: None)
    assert events.run(["-n", "1", str(file)]) == 0
    told = capsys.readouterr()
    place = offset_of(busy, "inner") + 2
    assert f"callchain=[[{busy.name}+{place:#x}] <- " in told.out
    assert "python3 -m pip install 'collectord[symbols]'" in told.err


def test_events_without_call_chains_load_nothing_for_names(tmp_path: Path) -> None:
    """Neither DuckDB nor what reads symbols."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5, 6)]})
    program = (
        "import sys; from collectord.cli import events; events.run(sys.argv[1:]); "
        "print(*(name for name in sys.modules if 'duckdb' in name or 'symbol' in name))"
    )
    words = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 3
    assert not done.stdout.splitlines()[-1].strip()
