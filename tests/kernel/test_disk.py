# SPDX-License-Identifier: Apache-2.0
"""Full and failing disks: the rings go on, every record is stored or counted, nothing dies."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from collectord.sink.formats import open_stored
from collectord.sink.segment import NEW_MANIFEST
from tests.support import daemons
from tests.support.daemons import NUMBER
from tests.support.disks import ext4
from tests.support.segments import mounted

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.support.daemons import Daemon, Ended
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Start = Callable[..., subprocess.Popen[str]]
    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

RECORD_BYTES: Final = 128
DISK_BYTES: Final = 12 << 20
BALLAST_BYTES: Final = 5 << 20
# The bytes of an ext4 of that size for its journal and its tables. Segments in work, which
# cannot be evicted, need half of what the ballast leaves.
EXT4_BYTES: Final = 5 << 20
SEGMENT: Final = "768KiB"
# Nearly twice what the ballast leaves.
OVERFULL: Final = DISK_BYTES // RECORD_BYTES
# Two segments and a half.
SOME: Final = 16_000
# Far from what a ring of 4 MiB needs to overflow while a flush interval passes.
RATE: Final = 100_000.0
DISK_FULL: Final = "sink/disk_full"
DROPPED: Final = "sink/dropped"
INODES: Final = 64
# The events of a burst that a segment holds; and what the segments in work take of the floor.
PIECE: Final = 6_000
SLACK_BYTES: Final = 3 << 20
NO_LIMIT_NEAR: Final = {"age": "365d"}  # something may be evicted, but only for want of space
HOUR_S: Final = 3600.0


def _ext4(directory: Path) -> AbstractContextManager[Path]:
    return ext4(directory, DISK_BYTES + EXT4_BYTES)


@contextmanager
def _tmpfs(directory: Path, size_bytes: int = DISK_BYTES) -> Iterator[Path]:
    with mounted("tmpfs", directory, f"size={size_bytes},nr_inodes={INODES}"):
        yield directory


class Disk(NamedTuple):
    """A small filesystem with a daemon's state on it.

    Attributes:
        state: the state directory.
        ballast: a file that takes space away until it is deleted.
    """

    root: Path
    state: Path
    ballast: Path

    @staticmethod
    def on(root: Path) -> Disk:
        """Return the paths on `root`, with the ballast there."""
        disk = Disk(root, root / "state", root / "ballast")
        with disk.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
        return disk

    def take_all_inodes(self) -> list[Path]:
        """Leave no room for another file, though there is some for data."""
        taken: list[Path] = []
        while os.statvfs(self.root).f_ffree:
            taken.append(self.root / f"inode-{len(taken)}")
            taken[-1].touch()
        return taken


@pytest.fixture(params=[_tmpfs, _ext4], ids=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Provide a small filesystem, memory without O_DIRECT or a loop device with it."""
    with request.param(tmp_path / "disk") as root:
        yield Disk.on(root)


@pytest.fixture
def inodes(tmp_path: Path) -> Iterator[Disk]:
    """Provide a filesystem that can run out of files before it runs out of space."""
    with _tmpfs(tmp_path / "disk", 4 * DISK_BYTES) as root:
        yield Disk.on(root)


class Load:
    """Bursts of a known number of calls, and their sum."""

    def __init__(self, generator: Generator) -> None:
        self.made = 0
        self._generator = generator

    def burst(self, count: int, rate: float = RATE) -> None:
        """Make so many calls, at a pace that a running drain keeps up with."""
        with self.bursting(count, rate):
            pass

    @contextmanager
    def bursting(self, count: int, rate: float = RATE) -> Iterator[None]:
        """Make a burst while the block runs; it is over when both are."""
        with self._generator.start("count", count=count, rate=rate, nr=NUMBER) as running:
            running.go()
            yield
            assert running.result()["events"] == count
        self.made += count

    def settled(self, daemon: Daemon) -> dict[str, Any]:
        """Wait until everything made has met its fate; give the balance, which must be even."""

        def even() -> bool:
            now = daemon.session()
            return bool(
                now["produced"] == self.made == now["stored"] + sum(now["lost"].values())
                and now["in_flight"] == now["unaccounted"] == 0
            )

        try:
            daemons.wait_for(even, f"a balance of {self.made} records")
        except AssertionError as error:
            error.add_note(str(daemon.session()))
            raise
        return daemon.session()


@pytest.fixture
def load(generator: Generator) -> Load:
    """Make the events of the test."""
    return Load(generator)


def _lost(session: dict[str, Any]) -> dict[str, int]:
    """Return the losses above 0."""
    return {key: count for key, count in session["lost"].items() if count}


def _deleted(daemon: Daemon) -> dict[str, float]:
    """Return the counters of deleted segments by reason, without those at 0."""
    name = 'collectord_segments_deleted_total{reason="%s",session="calls",source="perf"}'
    counts = {reason: daemon.metric(name % reason) for reason in ("age", "quota", "free_space")}
    return {reason: count for reason, count in counts.items() if count}


def _is_degraded(daemon: Daemon, reason: str) -> bool:
    return any(reason in told for told in daemon.session()["degraded"])


def _check_evicted(ended: Ended, state: Path, reason: str) -> None:
    """All that was deleted was deleted for one reason, and was older than all that is kept."""
    told = ended.named("segment_deleted")
    assert {line["reason"] for line in told} == {reason}
    deleted = {Path(line["path"]).name for line in told}
    assert max(deleted) < min(path.name for path in daemons.sealed(state))


def _check_files(
    state: Path, run_cli: Run, perfs: Perfs, *, states: tuple[str, ...] = ("sealed",)
) -> int:
    """Every file is a sealed segment that verifies and opens in every perf; give the samples.

    `states` are those that `segments verify` may tell; a repair leaves `recovered` ones.
    """
    assert daemons.left_open(state) == []
    segments = daemons.sealed(state)
    assert segments
    done = run_cli("segments", "verify", "--json", state)
    verdicts = json.loads(done.stdout)["segments"]
    assert [v for v in verdicts if v["finding"] or v["state"] not in states] == []
    assert (done.returncode, len(verdicts)) == (0, len(segments))
    return daemons.readable_samples(perfs, segments)


def _check_final_ledger(state: Path, balance: dict[str, Any]) -> None:
    """The last manifest has the balance that the daemon showed."""
    ledger = daemons.manifest(daemons.sealed(state)[-1])["ledger"]
    keys = ("produced", "stored", "lost", "unaccounted")
    assert ledger["closed"]
    assert {key: ledger[key] for key in keys} == {key: balance[key] for key in keys}


def _check_clean(ended: Ended) -> None:
    assert ended.status == 0, ended.log
    assert not ended.named("internal_error"), ended.log
    assert not ended.named("library_message"), ended.log


def test_full_disk_evicts_the_oldest(  # noqa: PLR0917  # fixtures
    tmp_path: Path, disk: Disk, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """If retention may delete, a full disk costs the oldest segments and recording goes on."""
    config = daemons.write_config(
        tmp_path, disk.state, segment_bytes=SEGMENT, retention=NO_LIMIT_NEAR
    )
    with daemons.running(start_cli, config) as daemon:
        load.burst(OVERFULL)
        full = load.settled(daemon)
        assert set(_lost(full)) <= {DISK_FULL}
        # Only what is sealed is evicted, and nothing may have been as yet.
        balance = full

        def goes_on() -> bool:
            """More was stored than the disk holds, and none of the last burst was given up."""
            nonlocal balance
            more = balance["stored"] * RECORD_BYTES > DISK_BYTES - BALLAST_BYTES
            load.burst(1_000 if more else PIECE, RATE / 5)
            balance = load.settled(daemon)
            return bool(more and balance["state"] == "running")

        daemons.wait_for(goes_on, "a recording that goes on")
        assert set(_deleted(daemon)) == {"free_space"}
        assert balance["stored"] > full["stored"]
        assert set(_lost(balance)) <= {DISK_FULL}
        ended = daemon.stop()
        _check_clean(ended)
        _check_evicted(ended, disk.state, "free_space")
        _check_final_ledger(disk.state, balance)
        assert _check_files(disk.state, run_cli, perfs) < balance["stored"]


def test_full_disk_with_nothing_to_evict(  # noqa: PLR0917  # fixtures
    tmp_path: Path, disk: Disk, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """Records without room are counted; storing resumes once there is room."""
    config = daemons.write_config(tmp_path, disk.state, segment_bytes=SEGMENT)
    with daemons.running(start_cli, config) as daemon:
        with load.bursting(OVERFULL):
            daemons.wait_for(lambda: _is_degraded(daemon, "disk full"), "the full disk")
            assert daemon.session()["state"] == "degraded"
        full = load.settled(daemon)
        # No loss in the rings: they are drained all the time.
        assert set(_lost(full)) == {DISK_FULL}
        assert full["stored"] > 0
        assert _deleted(daemon) == {}
        assert daemon.metric("collectord_write_errors_total") > 0

        disk.ballast.unlink()
        load.burst(SOME)
        balance = load.settled(daemon)
        assert balance["stored"] == full["stored"] + SOME
        daemons.wait_for(lambda: daemon.session()["state"] == "running", "the end of degraded")
        ended = daemon.stop()
        _check_clean(ended)
        assert ended.named("disk_full")
        _check_final_ledger(disk.state, balance)
        assert _check_files(disk.state, run_cli, perfs) == balance["stored"]


def test_stop_with_a_full_disk(  # noqa: PLR0917  # fixtures
    tmp_path: Path, disk: Disk, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """A daemon that stops while its disk is full says what is not sealed; all can be read."""
    config = daemons.write_config(tmp_path, disk.state, segment_bytes=SEGMENT)
    with daemons.running(start_cli, config) as daemon:
        load.burst(OVERFULL)
        balance = load.settled(daemon)
        assert set(_lost(balance)) == {DISK_FULL}
        ended = daemon.stop()
        # A segment that found no room for its tail is sealed once there is some.
        if ended.named("segments_not_sealed"):
            assert (ended.status, "Traceback" in ended.log) == (1, False), ended.log
        else:
            _check_clean(ended)
        disk.ballast.unlink()
        assert run_cli("segments", "repair", disk.state).returncode == 0
        found = _check_files(disk.state, run_cli, perfs, states=("sealed", "recovered"))
        assert found == balance["stored"]


def test_no_room_for_the_next_segment(  # noqa: PLR0917  # fixtures
    tmp_path: Path, inodes: Disk, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """Without a next segment the running one goes on, and rotation resumes when there is room."""
    inodes.ballast.unlink()
    config = daemons.write_config(tmp_path, inodes.state, segment_bytes=SEGMENT)
    with daemons.running(start_cli, config) as daemon:
        load.burst(SOME)
        load.settled(daemon)
        # All that is closed is sealed, and the next one needs no other file.
        daemons.wait_for(lambda: _runs_with_a_prepared_one(inodes.state), "a prepared segment")
        prepared = _claimed(inodes.state)[-1]
        taken = inodes.take_all_inodes()
        load.burst(2 * SOME)
        stuck = load.settled(daemon)
        assert _lost(stuck) == {}
        assert stuck["state"] == "degraded"
        assert _is_degraded(daemon, "cannot create a segment")
        # The prepared segment took over, and there is none behind it; what it followed is sealed.
        daemons.wait_for(lambda: _claimed(inodes.state) == [prepared], "its seal")

        for path in taken:
            path.unlink()
        daemons.wait_for(lambda: daemon.session()["state"] == "running", "the end of degraded")
        load.burst(SOME)
        balance = load.settled(daemon)
        assert (balance["stored"], _lost(balance)) == (load.made, {})
        ended = daemon.stop()
        _check_clean(ended)
        assert ended.named("segment_not_created")
        _check_final_ledger(inodes.state, balance)
        assert _check_files(inodes.state, run_cli, perfs) == load.made


def _partials(state: Path) -> int:
    return len(list(state.rglob("*.perf.data.partial")))


def _claimed(state: Path) -> list[str]:
    """Return the names of unsealed segments, by age; the new manifest of one is made last."""
    return sorted(path.name.removesuffix(NEW_MANIFEST) for path in state.rglob(f"*{NEW_MANIFEST}"))


def _running(state: Path) -> str:
    """Return the name of the running segment, as the link beside it says."""
    links = [path.readlink().name for path in state.rglob("current-*")]
    return links[0].removesuffix(".partial") if links else ""


def _runs_with_a_prepared_one(state: Path) -> bool:
    """Whether there are two segments that are not sealed, of which the first one runs."""
    claimed = _claimed(state)
    return len(claimed) == _partials(state) == 2 and _running(state) == claimed[0]


def test_other_write_errors_are_dropped(
    tmp_path: Path, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """A write error that no room would cure is counted as dropped; another file is tried."""
    config = daemons.write_config(tmp_path)
    state = tmp_path / "state"
    # SIGXFSZ is ignored by Python, so writes behind the limit fail with EFBIG.
    with daemons.running(start_cli, config, prefix=("prlimit", f"--fsize={2 << 20}")) as daemon:
        load.burst(2 * SOME)
        balance = load.settled(daemon)
        assert set(_lost(balance)) == {DROPPED}
        assert balance["stored"] > 0
        assert daemon.metric("collectord_write_errors_total") > 0
        load.burst(SOME)
        again = load.settled(daemon)
        assert again["stored"] > balance["stored"]
        ended = daemon.stop()
    # A file that ends at the limit may have no room for its tail; the stop tells of it.
    assert ended.status == int(bool(ended.named("segments_not_sealed"))), ended.log
    assert not ended.named("internal_error"), ended.log
    assert not ended.named("library_message"), ended.log
    assert {line["error"] for line in ended.named("write_failed")} == {"EFBIG"}
    assert run_cli("segments", "repair", state).returncode == 0
    found = _check_files(state, run_cli, perfs, states=("sealed", "recovered"))
    assert found == again["stored"]


def test_retention_by_bytes(
    tmp_path: Path, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """A running daemon keeps its segments within the quota, and deletes the oldest for it."""
    quota_bytes = 4 << 20
    config = daemons.write_config(
        tmp_path, segment_bytes="512KiB", retention={"bytes": f"{quota_bytes}B"}
    )
    state = tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        load.burst(4 * SOME)
        balance = load.settled(daemon)
        daemons.wait_for(lambda: _allocated(state) <= quota_bytes, "the quota")
        assert set(_deleted(daemon)) == {"quota"}
        assert _lost(balance) == {}
        assert _partials(state), "the running segment is there"
        ended = daemon.stop()
    _check_clean(ended)
    _check_evicted(ended, state, "quota")
    assert 0 < _check_files(state, run_cli, perfs) < load.made


def test_a_segment_that_is_deleted_in_use(
    tmp_path: Path, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """It costs its own records, which are counted, and nothing of what comes after it."""
    quota_bytes = 8 << 20
    config = daemons.write_config(
        tmp_path, segment_bytes=SEGMENT, retention={"bytes": f"{quota_bytes}B"}
    )
    state = tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        load.burst(PIECE // 2)
        load.settled(daemon)
        _written(state).unlink()
        for _ in range(3):
            load.burst(4 * SOME)
            balance = load.settled(daemon)
            daemons.wait_for(lambda: _allocated(state) <= quota_bytes, "the quota")
        # The running segment and a prepared one, each for data and for its head.
        daemons.wait_for(lambda: sum(".partial" in of for of in daemon.fds()) <= 4, "few files")
        assert _partials(state) <= 2
        balance = load.settled(daemon)
        lost = _lost(balance)
        assert set(lost) == {DROPPED}
        assert PIECE // 2 <= lost[DROPPED] < 4 * SOME
        assert balance["segments_unsealed"] == 1
        assert _is_degraded(daemon, "not sealed")
        ended = daemon.stop()
    assert ended.status == 1
    (given_up,) = ended.named("segment_given_up")
    assert (given_up["left"], given_up["lost"]) == ([], lost[DROPPED])
    assert not _partials(state)
    # All that came since is in segments, or was deleted by the quota.
    found = _check_files(state, run_cli, perfs)
    manifests = [daemons.manifest(path) for path in daemons.sealed(state)]
    last = max(manifests, key=lambda manifest: manifest["stored_before"])
    assert last["stored_before"] + last["samples"] == load.made - lost[DROPPED]
    assert 0 < found < load.made
    _check_final_ledger(state, balance)


def _written(state: Path) -> Path:
    """Return the running segment; beside it another is prepared."""
    (running,) = (path for path in state.rglob("*.data.partial") if _holds_data(path))
    return running


def test_a_segment_that_cannot_be_published(
    tmp_path: Path, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """It is left for the repair with its records, which stay stored; the others are sealed."""
    config = daemons.write_config(tmp_path, segment_bytes=SEGMENT)
    state = tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        load.burst(PIECE // 2)
        load.settled(daemon)
        path = _written(state)
        name = path.name.removesuffix(".partial")
        planted = path.with_name(name + ".json")
        planted.mkdir()
        load.burst(2 * SOME)
        balance = load.settled(daemon)
        daemons.wait_for(lambda: daemon.session()["segments_unsealed"] == 1, "its end")
        assert (balance["stored"], _lost(balance)) == (load.made, {})
        ended = daemon.stop()
    assert ended.status == 1
    (given_up,) = ended.named("segment_given_up")
    assert given_up["left"] == [str(path)]
    planted.rmdir()
    assert run_cli("segments", "repair", state).returncode == 0
    states = ("sealed", "recovered")
    assert _check_files(state, run_cli, perfs, states=states) == load.made


def _holds_data(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(open_stored(file.fileno()).survey().samples)


def _allocated(state: Path) -> int:
    total = 0
    for path in state.rglob("*"):
        try:
            status = path.lstat()  # a link leads to the running segment
            total += status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
        except FileNotFoundError:
            continue  # deleted just now
    return total


def test_retention_by_age(
    tmp_path: Path, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """Old segments are deleted, but not young ones, the open one, or other files."""
    config = daemons.write_config(tmp_path, segment_bytes=SEGMENT, retention={"age": "1h"})
    state = tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        load.burst(2 * SOME)
        load.settled(daemon)
        daemons.wait_for(lambda: len(daemons.sealed(state)) >= 4, "four segments")
        oldest, second, *young = daemons.sealed(state)
        other = state / "other"
        other.mkdir()
        others = [_copy(young[0], other), _copy(oldest, other)]
        by_hand = _copy(oldest, other / "by-hand.perf.data")
        for path in (oldest, second, others[1], by_hand):
            _make_old(path)
        for path in state.rglob("*.partial"):
            with suppress(FileNotFoundError):  # it is sealed meanwhile
                _make_old(path)
        load.burst(SOME)  # a seal looks after the limits
        load.settled(daemon)
        daemons.wait_for(lambda: not oldest.exists() and not second.exists(), "the end of the old")
        daemons.wait_for(lambda: not others[1].exists(), "the end of another session's old one")
        daemons.wait_for(lambda: _deleted(daemon) == {"age": 2}, "the counters")
        assert all(path.exists() for path in (*young, others[0], by_hand))
        assert _lost(daemon.session()) == {}
        ended = daemon.stop()
    _check_clean(ended)
    assert {line["reason"] for line in ended.named("segment_deleted")} == {"age"}
    shutil.rmtree(other)
    assert 0 < _check_files(state, run_cli, perfs) < load.made


def _copy(segment: Path, target: Path) -> Path:
    """Return a segment and its manifest once more, as young as can be."""
    copy = target / segment.name if target.is_dir() else target
    shutil.copyfile(segment, copy)
    shutil.copyfile(f"{segment}.json", f"{copy}.json")
    return copy


def _make_old(path: Path) -> None:
    then = time.time() - 2 * HOUR_S
    os.utime(path, (then, then))
    manifest = Path(f"{path}.json")
    if manifest.exists():
        os.utime(manifest, (then, then))


def test_retention_by_free_space(  # noqa: PLR0917  # fixtures
    tmp_path: Path, disk: Disk, start_cli: Start, run_cli: Run, load: Load, perfs: Perfs
) -> None:
    """The floor of free space is held: the disk never fills up and nothing is lost."""
    floor_bytes = 4 << 20
    disk.ballast.unlink()
    config = daemons.write_config(
        tmp_path, disk.state, segment_bytes=SEGMENT, retention={"free": f"{floor_bytes}B"}
    )
    with daemons.running(start_cli, config) as daemon:
        # In pieces, so that the limits are looked after in between, however slow the machine is.
        while load.made < OVERFULL:
            load.burst(PIECE)
            balance = load.settled(daemon)
            daemons.wait_for(lambda: _free(disk.root) >= floor_bytes - SLACK_BYTES, "room")
        assert (balance["stored"], _lost(balance)) == (load.made, {})
        daemons.wait_for(lambda: _free(disk.root) >= floor_bytes, "the floor")
        assert set(_deleted(daemon)) == {"free_space"}
        ended = daemon.stop()
        _check_clean(ended)
        assert not ended.named("disk_full")
        _check_evicted(ended, disk.state, "free_space")
        # The disk has as many as fit: the last one that went was needed, and the stop gave back
        # no more than the room of the one in work and of the one prepared.
        largest_bytes = max(path.stat().st_blocks * 512 for path in daemons.sealed(disk.state))
        assert _free(disk.root) < floor_bytes + 3 * largest_bytes
        assert _check_files(disk.state, run_cli, perfs) < load.made


def _free(root: Path) -> int:
    space = os.statvfs(root)
    return space.f_bavail * space.f_frsize
