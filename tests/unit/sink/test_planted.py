# SPDX-License-Identifier: Apache-2.0
"""Planted files in the place of a segment's names hang nothing and grow nothing."""

from __future__ import annotations

import os
import resource
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import SinkError, UnsafePath
from collectord.folders.walk import open_folder
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.verify import list_segments, verify
from collectord.recovery.unclean_stops import count_unclean_stops
from collectord.sink.outcome import Action
from collectord.sink.repair import repair
from collectord.sink.state_dir import StateDir
from tests.support import segments as support
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

GIANT_BYTES: Final = 1 << 30
ROOM_BYTES: Final = 128 << 20
SUFFIXES: Final = (".partial", ".json.partial", ".json", ".json.new")


def _socket(path: Path) -> None:
    # By the folder's descriptor: its path may be too long for an address.
    with socket.socket(socket.AF_UNIX) as made, open_folder(path.parent) as folder:
        made.bind(str(folder.place / path.name))


def _giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIANT_BYTES)


PLANTS: Final[dict[str, Callable[[Path], object]]] = {
    "fifo": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(path.parent / "victim"),
    "dangling": lambda path: path.symlink_to(path.parent / "absent"),
    "socket": _socket,
    "directory": lambda path: path.mkdir(),
    "giant": _giant,
}


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    """A test that hangs is ended, and memory that grows by a giant is not to be had."""

    def end(_number: int, _frame: object) -> None:
        message = "it hangs"
        raise AssertionError(message)

    with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123  # no pathlib needed
        used = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + ROOM_BYTES, hard))
    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(round(patient(30)))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Provide a file that links lead to."""
    path = tmp_path / "victim"
    path.write_bytes(b"not yours" * 1000)
    yield path
    assert path.read_bytes() == b"not yours" * 1000
    assert not (tmp_path / "absent").exists()


@pytest.fixture(params=PLANTS)
def plant(request: pytest.FixtureRequest, victim: Path) -> Callable[[Path], object]:
    """Return a function that puts one of them in the place of a name."""
    assert victim.exists()
    return PLANTS[request.param]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_recording_to_one_file(
    tmp_path: Path, plant: Callable[[Path], object], suffix: str
) -> None:
    """Anything but what a recording leaves is refused by name, before anything is made."""
    path = tmp_path / f"x.data{suffix}"
    plant(path)
    before = path.lstat()
    made = support.make_sink(tmp_path, single_file=str(tmp_path / "x.data"))
    with closing(made) as sink, pytest.raises(SinkError) as refused:
        sink.next_segment(1, support.OPENING)
    assert str(path) in str(refused.value)
    assert refused.value.hint
    assert path.lstat() == before
    assert {p.name for p in tmp_path.iterdir()} == {"victim", path.name}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_beside_segments(tmp_path: Path, plant: Callable[[Path], object], suffix: str) -> None:
    """Listing, verifying, repairing and going on tell of it, and have all others in order."""
    sealed = support.write_segment(support.make_sink(tmp_path)).path
    orphan = support.orphan(tmp_path)
    name = orphan.name.removesuffix(".partial")
    path = tmp_path / f"{name}{suffix}"
    path.unlink(missing_ok=True)
    plant(path)
    rows = {row.path.name: row for row in list_segments([tmp_path])}
    assert rows[sealed.name].samples == 250
    assert {v.path: v.finding for v in verify([tmp_path])}[sealed] is None
    outcomes = repair(tmp_path)
    assert sealed not in {outcome.path for outcome in outcomes}
    assert all("\n" not in outcome.detail for outcome in outcomes)
    with closing(support.make_sink(tmp_path)) as sink:
        later = support.write_segment(sink).path
    assert {v.path: v.finding for v in verify([sealed, later])} == {sealed: None, later: None}
    if suffix == ".json.partial":
        (outcome,) = outcomes
        assert outcome.action in {Action.FAILED, Action.REFUSED, Action.RECOVERED}
        assert outcome.damaged


@pytest.mark.parametrize("name", [".unclean_stops", "..unclean_stops.new"])
def test_count_of_unclean_stops(
    tmp_path: Path, plant: Callable[[Path], object], name: str
) -> None:
    """It begins anew, or is refused by name."""
    path = tmp_path / name
    plant(path)
    if name == ".unclean_stops" and path.is_dir():
        with pytest.raises(SinkError, match="Is a directory"):
            count_unclean_stops(tmp_path, add=True)
    elif name == ".unclean_stops" or (path.is_file() and not path.is_symlink()):
        assert [count_unclean_stops(tmp_path, add=True) for _ in range(2)] == [1, 2]
    else:
        with pytest.raises(UnsafePath, match=name):
            count_unclean_stops(tmp_path, add=True)


def test_folder_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    """The folder that has its name by then is used."""
    home = tmp_path / "home"
    with closing(support.make_sink(home)) as sink:
        info = support.write_segment(sink)
        for path in home.iterdir():
            path.unlink()
        home.rmdir()
        again = support.write_segment(sink, 2)
    assert again.path.parent == info.path.parent
    assert [verdict.path for verdict in verify([home])] == [again.path]


def test_store_without_a_folder(tmp_path: Path) -> None:
    """There is nothing to delete where nothing is."""
    assert not StateDir(tmp_path / "absent", RetentionPlan(bytes=1)).make_room(1)


def test_segments_folder_that_is_a_link(tmp_path: Path) -> None:
    """A session's folder that leads elsewhere is no folder of the state directory."""
    elsewhere = tmp_path / "elsewhere"
    orphan = support.orphan(elsewhere)
    state = tmp_path / "state"
    state.mkdir()
    (state / "exec").symlink_to(elsewhere)
    assert repair(state) == []
    assert orphan.exists()


def test_planted_between_creation_and_seal(tmp_path: Path, victim: Path) -> None:
    """The seal writes through no link that came meanwhile: the manifest is not sealed there."""
    with closing(support.make_sink(tmp_path)) as sink:
        segment = sink.next_segment(1, support.OPENING)
        closed = support.fill(segment)
        segment.paths.new_manifest.unlink()
        segment.paths.new_manifest.symlink_to(victim)
        with pytest.raises(UnsafePath, match="is a link"):
            sink.seal(segment, closed, support.closing())
