# SPDX-License-Identifier: Apache-2.0
"""`segments aux`: the traces of a segment as raw files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from collectord.cli import segments
from collectord.errors import SinkError, UnsafePath, UsageError
from tests.support import segments as support
from tests.support.aux_files import AuxFile
from tests.support.aux_pieces import encode_piece

if TYPE_CHECKING:
    from pathlib import Path

TRACE = bytes(range(256)) * 300


def write(path: Path, *pieces: bytes, hidden: bool = True) -> Path:
    """Return a file with these pieces among samples."""
    file = AuxFile(aux=None) if hidden else AuxFile()
    records = [part for piece in pieces for part in (file.sample(1_000), piece)]
    path.write_bytes(file.build(records))
    return path


def run(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Return the exit status, and the result as JSON."""
    status = segments.run(["aux", "--json", *map(str, words)])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, result


@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
def test_traces_come_out_as_they_went_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hidden: bool
) -> None:
    """Both framings, by CPU and by thread, each byte and none of what pads them."""
    pieces = (
        encode_piece(TRACE[:70_001], offset=5, cpu=1, hidden=hidden),
        encode_piece(TRACE[:33], offset=0, cpu=0, hidden=hidden),
        encode_piece(TRACE[70_001:], offset=70_006, cpu=1, hidden=hidden),
        encode_piece(TRACE[:9], offset=64, tid=4321, hidden=hidden),
    )
    path = write(tmp_path / "x.perf.data", *pieces, hidden=hidden)
    status, result = run(path, "--output-dir", tmp_path / "raw" / "deep", capsys=capsys)
    assert (status, result["damage"]) == (0, "")
    rows = {(row["cpu"], row["tid"]): row for row in result["traces"]}
    assert list(rows) == [(0, -1), (1, -1), (-1, 4321)]
    assert (rows[1, -1]["offset"], rows[1, -1]["bytes"]) == (5, len(TRACE))
    assert not any(row["gaps"] or row["missing_bytes"] for row in rows.values())
    out = tmp_path / "raw" / "deep"
    assert (out / "x.perf.data.aux.cpu1").read_bytes() == TRACE
    assert (out / "x.perf.data.aux.cpu0").read_bytes() == TRACE[:33]
    assert (out / "x.perf.data.aux.tid4321").read_bytes() == TRACE[:9]
    assert len(list(out.iterdir())) == 3


def test_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that the trace jumps over are told; one that begins anew lacks none."""
    pieces = [encode_piece(TRACE[:16], offset=at, cpu=0, hidden=True) for at in (100, 116, 172, 0)]
    path = write(tmp_path / "x", *pieces)
    _, result = run(path, "--output-dir", tmp_path, capsys=capsys)
    (row,) = result["traces"]
    assert (row["bytes"], row["pieces"]) == (64, 4)
    assert (row["gaps"], row["missing_bytes"]) == (2, 40)


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each file, with the place of its first byte."""
    path = write(tmp_path / "x", encode_piece(TRACE, offset=4096, cpu=3, hidden=True))
    assert segments.run(["aux", str(path), "--output-dir", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line == [str(tmp_path / "x.aux.cpu3"), "3", "-", "4,096", "76,800", "0"]


def test_nothing_to_extract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A segment without a trace is a failure that says so, and leaves no file."""
    path = write(tmp_path / "x")
    assert segments.run(["aux", str(path), "--output-dir", str(tmp_path / "raw")]) == 1
    assert "holds no AUX trace" in capsys.readouterr().err
    assert not (tmp_path / "raw").exists()


def test_damage_before_any_trace(tmp_path: Path) -> None:
    """There is nothing to write, and no directory is left for it."""
    path = write(tmp_path / "x", encode_piece(TRACE[:64], offset=0, cpu=0, hidden=True))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"COTDAUX1") - 8
    data[at + 6 : at + 8] = b"\x03\x00"
    path.write_bytes(data)
    assert segments.run(["aux", str(path), "--output-dir", str(tmp_path / "raw")]) == 1
    assert not (tmp_path / "raw").exists()


def test_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data before a damaged record are extracted; its place is reported."""
    piece = encode_piece(TRACE[:64], offset=0, cpu=0, hidden=True)
    path = write(tmp_path / "x", piece, encode_piece(TRACE[:64], offset=64, cpu=0, hidden=True))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"COTDAUX1") - 8
    data[at + 6 : at + 8] = b"\x03\x00"
    path.write_bytes(data)
    status, result = run(path, "--output-dir", tmp_path, capsys=capsys)
    assert status == 1
    assert result["damage"] == f"no record at byte {at} (record_size)"
    assert (tmp_path / "x.aux.cpu0").read_bytes() == TRACE[:64]


def test_unsealed_segment(tmp_path: Path) -> None:
    """A segment that is left open is named as such, with what to do."""
    path = support.orphan(tmp_path)
    with pytest.raises(SinkError, match="it is not sealed") as caught:
        segments.run(["aux", str(path), "--output-dir", str(tmp_path)])
    assert "repair" in caught.value.hint


def test_other_files(tmp_path: Path) -> None:
    """A file that is no perf.data, or does not exist, is an error."""
    path = tmp_path / "x"
    path.write_bytes(bytes(4096))
    with pytest.raises(SinkError, match=r"no perf\.data"):
        segments.run(["aux", str(path), "--output-dir", str(tmp_path)])
    with pytest.raises(SinkError, match="cannot look at the segments"):
        segments.run(["aux", str(tmp_path / "y"), "--output-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["aux", "."], "needs --output-dir"),
        (["list", ".", "--output-dir", "x"], "needs --output-dir"),
        (["aux", ".", "--output-dir", "x"], "not a directory"),
    ],
)
def test_usage(words: list[str], says: str) -> None:
    """Incompatible options are refused before anything is written."""
    with pytest.raises(UsageError, match=says):
        segments.run(words)


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    """Unless all files can be written, none is left."""
    pieces = [encode_piece(TRACE[:64], offset=0, cpu=cpu, hidden=True) for cpu in (0, 1)]
    path = write(tmp_path / "x", *pieces)
    (tmp_path / "raw" / "x.aux.cpu1").mkdir(parents=True)
    with pytest.raises(UnsafePath, match=r"x[.]aux[.]cpu1: is not a regular file"):
        segments.run(["aux", str(path), "--output-dir", str(tmp_path / "raw")])
    assert [p.name for p in (tmp_path / "raw").iterdir()] == ["x.aux.cpu1"]
