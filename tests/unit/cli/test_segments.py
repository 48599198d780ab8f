# SPDX-License-Identifier: Apache-2.0
"""`segments`: list, verify, compress and repair, as tables and as JSON."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from collectord import cli
from collectord.cli import segments
from collectord.errors import SinkError, UsageError
from collectord.kernel.linux import LinuxKernel
from collectord.sink.base import Opening
from tests.support import segments as support
from tests.support.bpf_segments import S_NS
from tests.support.chunks import show

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def odd_state(tmp_path: Path) -> Path:
    """Return a directory whose name is no UTF-8, with one sealed segment of such a name."""
    directory = tmp_path / os.fsdecode(b"d\xff")
    directory.mkdir()
    support.write_segment(support.make_sink(directory), samples=250)
    return directory


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state directory with one sealed segment in the session `exec`."""
    directory = tmp_path / "exec"
    directory.mkdir()
    support.write_segment(support.make_sink(directory), samples=250)
    return tmp_path


def result(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Return the JSON result's segments."""
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["segments"]
    return found


def test_list(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sealed segment is a line with its state, samples and basis."""
    assert segments.run(["list", str(state)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert {"sealed", "250", "exact"} <= set(out.splitlines()[1].split())


def test_list_tells_when_the_data_begin_and_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the wall clock, not when the file was made, which may be long before the first record."""
    clock = replace(support.CLOCK, realtime_ns=1_700_000_000_000_000_000)
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, Opening(clock=clock, rings=support.RINGS))
    closed = support.fill(segment)._replace(
        first_ns=support.TIME_NS + 5 * S_NS, last_ns=support.TIME_NS + 85 * S_NS
    )
    late = replace(
        clock, realtime_ns=clock.realtime_ns + 90 * S_NS, perf_ns=clock.perf_ns + 90 * S_NS
    )
    sink.seal(segment, closed, support.closing(clock=late))
    assert segments.run(["list", str(tmp_path)]) == 0
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[3:5] == ["START", "END"]
    assert "2023-11-14 22:13:25Z  2023-11-14 22:14:45Z" in row
    assert segments.run(["list", "--json", str(tmp_path)]) == 0
    (plain,) = result(capsys)
    assert (plain["begins_ns"], plain["ends_ns"]) == (
        clock.realtime_ns + 5 * S_NS,
        clock.realtime_ns + 85 * S_NS,
    )


def test_list_tells_what_a_running_segment_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row has what readers find in it: at the beginning nothing, and then what was flushed."""
    clock = replace(support.CLOCK, realtime_ns=1_700_000_000_000_000_000)
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, Opening(clock=clock, rings=support.RINGS))
    chunks = support.sample_chunks(250)
    support.write_data(segment, chunks)
    assert segments.run(["list", "--json", str(tmp_path)]) == 0
    (plain,) = result(capsys)
    assert (plain["samples"], plain["begins_ns"], plain["ends_ns"]) == (0, None, None)
    show(segment, segment.data_offset + len(chunks[0]))
    assert segments.run(["list", "--json", str(tmp_path)]) == 0
    (plain,) = result(capsys)
    assert (plain["state"], plain["samples"], plain["records"]) == ("running", 100, None)
    assert (plain["begins_ns"], plain["ends_ns"]) == (
        clock.realtime_ns,
        clock.realtime_ns + 99 * 1000,
    )
    assert segments.run(["list", str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[2:8] == ["running", "2023-11-14", "22:13:20Z", "2023-11-14", "22:13:20Z", "100"]
    sink.close()


def test_a_segment_that_ended_early_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest does, and so do the list and the check; the one behind it is as any other."""
    sink = support.make_sink(tmp_path)
    for token, early in ((1, True), (2, False)):
        segment = sink.next_segment(token, support.OPENING)
        sink.seal(segment, support.fill(segment)._replace(early=early), support.closing())
    paths = sorted(tmp_path.glob("*.json"))
    assert [json.loads(path.read_bytes())["early"] for path in paths] == [True, False]
    for action, told in (("list", "sealed, early"), ("verify", "ended early: ")):
        assert segments.run([action, str(tmp_path)]) == 0
        _, first, second = capsys.readouterr().out.splitlines()
        assert told in first
        assert "early" not in second
        assert segments.run([action, "--json", str(tmp_path)]) == 0
        assert [row["early"] for row in result(capsys)] == [True, False]


def test_segment_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no end yet, and nobody calls it ok, repaired or wrong."""
    sink = support.make_sink(tmp_path)
    support.fill(sink.next_segment(1, support.OPENING))
    for action, told in (
        ("list", " running "),
        ("verify", " being written"),
        ("repair", " in_use "),
    ):
        assert segments.run([action, str(tmp_path)]) == 0
        (_, row) = capsys.readouterr().out.splitlines()
        assert told in row
        assert " ok " not in row
    sink.close()


def test_list_as_json(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json may stand before DIR, and gives every column as plain data."""
    assert segments.run(["list", "--json", str(state)]) == 0
    (row,) = result(capsys)
    assert (row["state"], row["samples"], row["basis"]) == ("sealed", 250, "exact")
    assert str(row["path"]).startswith(str(state / "exec"))


def test_name_that_is_no_utf8(odd_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no UTF-8 show as escapes, in JSON and in a table."""
    for action in ("list", "verify"):
        assert segments.run([action, "--json", str(odd_state)]) == 0
        assert "/d\\xff/" in str(result(capsys)[0]["path"])
        assert segments.run([action, str(odd_state)]) == 0
        assert "/d\\xff/" in capsys.readouterr().out


def test_refused_directory_needs_read_permission(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without read permission is told to get it, and not write permission."""

    def refuse(*_arguments: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for action in ("list", "verify", "repair"):
        with monkeypatch.context() as context:
            context.setattr(os, "scandir", refuse)
            with pytest.raises(SinkError, match=r"give uid .* read permission there"):
                segments.run([action, str(state)])


def test_path_that_leads_nowhere(tmp_path: Path) -> None:
    """A path through a file is told in one line, as an absent one is."""
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="a part of the path is a file"):
        segments.run(["list", str(tmp_path / "file/below")])


def test_verify_sound_and_damaged(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sound segment is ok; after one changed byte it is wrong, and the status 1."""
    assert segments.run(["verify", str(state)]) == 0
    assert " ok " in capsys.readouterr().out
    (path,) = (state / "exec").glob("*.perf.data")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert segments.run(["verify", str(path)]) == 1
    assert "checksum: " in capsys.readouterr().out


def test_verify_with_sha256(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hash of the whole file is computed when asked for."""
    assert segments.run(["verify", "--json", str(state)]) == 0
    assert result(capsys)[0]["sha256"] is None
    assert segments.run(["verify", "--sha256", "--json", str(state)]) == 0
    assert len(str(result(capsys)[0]["sha256"])) == 64


def test_compress(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sealed segment gets its compressed form once, and both sizes are told."""
    (path,) = (state / "exec").glob("*.perf.data")
    support.write_segment(support.make_sink(state), samples=10_000)
    before = path.stat().st_size
    for action in (str(path), str(state)):
        assert segments.run(["compress", "--json", action]) == 0
        for row in result(capsys):
            assert row["result"] == "packed"
    assert path.stat().st_size < before
    assert segments.run(["compress", str(state)]) == 0
    assert " packed " in capsys.readouterr().out
    assert segments.run(["verify", str(state)]) == 0


def test_compress_leaves_what_is_damaged(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A segment that does not match its checksums stays as it is, and makes the status 1."""
    (path,) = (state / "exec").glob("*.perf.data")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert segments.run(["compress", str(path)]) == 1
    assert "unsound" in capsys.readouterr().out
    assert path.read_bytes() == data


def test_repair(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An orphan is sealed as far as it goes, and is then listed as recovered."""
    support.orphan(state / "exec", samples=100)
    assert segments.run(["repair", "--json", str(state)]) == 0
    (outcome,) = result(capsys)
    assert (outcome["action"], outcome["samples"]) == ("recovered", 100)
    assert segments.run(["repair", str(state)]) == 0
    assert segments.run(["verify", str(state)]) == 0
    capsys.readouterr()
    assert segments.run(["list", "--json", str(state)]) == 0
    assert sorted(str(row["state"]) for row in result(capsys)) == ["recovered", "sealed"]


def test_repair_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be repaired is left alone, named, and makes the status 1."""
    left = tmp_path / "20260101T000000Z-000001.perf.data.partial"
    left.write_bytes(b"garbage" * 100)
    assert segments.run(["repair", str(tmp_path)]) == 1
    assert "refused" in capsys.readouterr().out
    assert left.read_bytes() == b"garbage" * 100


def test_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list is a result, not an error."""
    assert segments.run(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("action", ["list", "verify", "repair"])
def test_absent_directory(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is not there is one line on stderr that names it."""
    status = cli.main(LinuxKernel, ["segments", action, str(tmp_path / "nope")])
    captured = capsys.readouterr()
    assert status == SinkError.exit_code
    assert str(tmp_path / "nope") in captured.err
    assert captured.err.count("\n") == 1


def test_sha256_goes_with_verify(state: Path) -> None:
    """An option that would do nothing is refused."""
    with pytest.raises(UsageError, match="--sha256"):
        segments.run(["list", "--sha256", str(state)])
