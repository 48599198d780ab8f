# SPDX-License-Identifier: Apache-2.0
"""Snapshots: in which order rings stand still and go on, and what is counted of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.cli.output import snapshot_text
from collectord.errors import KernelError, SinkError
from collectord.session.flight_recorder import FlightRecorder
from collectord.session.ring_snapshot import RingSnapshot, Trigger
from collectord.session.segment_ends import SnapshotSegments
from collectord.sink.manifest import SnapshotNote
from collectord.source.base import Abilities
from tests.support.commands import snapshot
from tests.support.sessions import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.session.session_parts import SessionParts

DRAINED, COPIED = False, True
NOTE = SnapshotNote(trigger=Trigger.REQUEST, taken_ns=1)


class Kernel:
    """Source, kernel, stream and drain at once; notes in which order they are asked."""

    freeze_fds: tuple[int, ...] = ()
    stands_still = True

    def __init__(self, refuse: str = "") -> None:
        self.asked: list[str] = []
        self.lost = 0  # of each ring, by a full disk
        self._refuse = refuse

    def _note(self, what: str) -> None:
        self.asked.append(what)
        if what == self._refuse:
            raise KernelError(f"{what} is refused")

    def pause(self) -> None:
        """Note that all rings are paused."""
        self._note("pause all")

    def resume(self) -> None:
        """Note that all rings are resumed."""
        self._note("resume all")

    def pause_output(self, fd: int, *, paused: bool) -> None:
        """Count a call for one ring."""
        self._note(f"{'pause' if paused else 'resume'} {fd}")

    def hurry(self, *, on: bool) -> None:
        """Note whether other streams let this one pass."""
        self._note("hurry" if on else "take turns")

    async def full_pass(self) -> int:
        """Note a pass of the drain."""
        self._note("pass")
        return 1

    async def written_pass(self) -> None:
        """Note a written pass of the drain."""
        await self.full_pass()

    async def answered(self, rings: object) -> None:
        """Note an answer of the drain."""

    def before_windows(self) -> dict[Any, Any]:
        """Note a call to the counter reader."""
        return {}

    def count_overwritten(self, before: object) -> None:
        """Note a call to the counter reader."""

    def ring(self, fd: int, *, copied: bool) -> Any:  # noqa: ANN401 - as much as is looked at
        """A held ring; records when it is let go, and held again."""

        def hold(held: bool) -> None:
            self._note(f"{'hold' if held else 'let go'} {fd}")

        def counters() -> SimpleNamespace:
            return SimpleNamespace(
                window_repeated=0,
                window_repeated_bytes=0,
                records=fd,
                lost_disk_full=self.lost,
                lost_dropped=0,
            )

        return SimpleNamespace(
            handle=SimpleNamespace(
                held=True,
                has_window=copied,
                fd=fd,
                given=lambda counters: counters.records,
                counters=(),
            ),
            ring=SimpleNamespace(warm=lambda: None, hold=hold, counters=counters),
            areas=(),
        )


def windows(kernel: Any, *copied: bool) -> RingSnapshot:  # noqa: ANN401 - a Kernel, as all it is
    """Return rings with the descriptors 0, 1, .., whose windows are copied or drained."""
    return RingSnapshot(parts(kernel, *copied))


def parts(kernel: Any, *copied: bool, plan: Any = None) -> SessionParts:  # noqa: ANN401 - likewise
    """Return the parts of a session with such rings."""
    source = SimpleNamespace(abilities=Abilities(recording=(kernel,)))
    rings = tuple(kernel.ring(fd, copied=one) for fd, one in enumerate(copied))
    return parts_of(plan, kernel, source=source, rings=rings)


def test_overwritable_rings_do_not_wait_for_aux_areas() -> None:
    """They are copied and go on; only then is what stands beside them drained."""
    kernel = Kernel()
    mixed = windows(kernel, DRAINED, COPIED, COPIED)
    note = asyncio.run(mixed.take(Trigger.REQUEST))
    copied = ["pause all", "let go 1", "let go 2", "resume 1", "resume 2"]
    # Held again before they go on: what comes then is of the next window.
    assert kernel.asked == [*copied, "let go 0", "pass", "hold 0", "resume all"]
    assert note.paused_ns == mixed.paused_ns > 0


def test_alone_they_need_no_pass() -> None:
    """The next pass takes the copies; all rings resume at once."""
    kernel = Kernel()
    asyncio.run(windows(kernel, COPIED).take(Trigger.REQUEST))
    assert kernel.asked == ["pause all", "let go 0", "resume all"]


def test_a_session_that_ends_meanwhile_has_all_drained() -> None:
    """Its end lets all rings go; nothing holds them, or starts them, behind it."""
    kernel = Kernel()
    one = windows(kernel, DRAINED)

    async def end_in_the_pass() -> int:
        one.end()
        return 1

    kernel.full_pass = end_in_the_pass  # type: ignore[method-assign]
    asyncio.run(one.take(Trigger.REQUEST))
    assert kernel.asked == ["pause all", "let go 0"]


def test_rings_go_on_though_one_cannot_be_read() -> None:
    """Whatever fails in between, nothing is left standing still."""
    kernel = Kernel(refuse="pass")
    mixed = windows(kernel, DRAINED, COPIED)
    with pytest.raises(KernelError):
        asyncio.run(mixed.take(Trigger.REQUEST))
    assert kernel.asked[-1] == "resume all"


def test_a_ring_that_leaves_gives_its_window_first() -> None:
    """It counts as given, and later snapshots are of the others, and of those that come."""
    kernel = Kernel()
    made = parts(kernel, COPIED, COPIED, COPIED)
    one = RingSnapshot(made)
    given = one.given()

    async def leave_and_return() -> None:
        await one.take_of(made.rings[2:])
        one.remove(made.rings[2:])
        await one.take(Trigger.REQUEST)
        one.add(made.rings[2])
        await one.take(Trigger.REQUEST)

    asyncio.run(leave_and_return())
    without = ["pause all", "let go 0", "let go 1", "resume all"]
    assert kernel.asked == ["let go 2", *without, *without[:3], "let go 2", "resume all"]
    assert one.given() == 2 * made.rings[2].handle.fd + 1 > given


def test_no_ring_leaves_in_the_middle_of_a_snapshot() -> None:
    """Its window would be missing, and the snapshot's figures would not add up."""

    async def scenario() -> list[str]:
        kernel = Kernel()
        made = recorder(Files(None), kernel)
        ring = kernel.ring(0, copied=COPIED)
        taking = asyncio.ensure_future(made.snapshot(Trigger.REQUEST))
        await asyncio.sleep(0)
        async with made.removing([ring], lambda: kernel.asked.append("stop")):
            assert taking.done()
            asked = list(kernel.asked)
        await taking
        return asked

    assert asyncio.run(scenario())[-3:] == ["hold 0", "stop", "let go 0"]


def test_a_time_that_nobody_knows_is_not_said() -> None:
    """A trace tells its times to decoders only: null, and no word of it, where 0 would be one."""
    dated = snapshot(("/s/1.perf.data",))
    trace = replace(dated, samples=0, first_ns=0, last_ns=0)
    assert dated.to_json()["seconds"] == 2
    assert trace.to_json()["seconds"] is None
    assert snapshot_text(dated.to_json()).startswith("blackbox: 1,000 events of 2 s, 125 KiB")
    assert snapshot_text(trace.to_json()).startswith("blackbox: 0 events, 125 KiB")


class Files:
    """Segments of a session: one runs, and a snapshot of it ends as the test says."""

    def __init__(self, end: SinkError | None) -> None:
        self.seals = SimpleNamespace(collected=None)
        self._end = end

    has_pages = True

    async def make_next(self) -> None:
        """Do nothing: there is a segment."""

    def rotate_for(self, collected: SnapshotSegments) -> None:
        """End the running segment, with or without an error."""
        collected.expect(7)
        collected.notify(7, self._end)


def recorder(files: Any, kernel: Any, *, freezes: bool = False) -> FlightRecorder:  # noqa: ANN401 - stand for several
    """Return a recorder with one overwritten ring."""
    plan: Any = SimpleNamespace(
        name="box", source="perf", sink=SimpleNamespace(single_file=None), freezes=freezes
    )
    anything: Any = SimpleNamespace(measure=lambda: None)
    return FlightRecorder(parts(kernel, COPIED, plan=plan), files, anything)


@pytest.mark.parametrize(
    ("freezes", "fds", "looks"), [(False, (), False), (True, (), True), (True, (5,), False)]
)
def test_a_freeze_that_nothing_tells_is_looked_for(
    *, freezes: bool, fds: tuple[int, ...], looks: bool
) -> None:
    """An ftrace instance is polled for it; a perf event has a descriptor that reports it."""
    kernel = Kernel()
    kernel.freeze_fds = fds
    assert recorder(Files(None), kernel, freezes=freezes).looks_for_freeze is looks


def test_only_what_is_stored_counts_as_stored() -> None:
    """A snapshot that cannot be taken, or not be sealed, is a failure and nothing else."""

    async def scenario(end: SinkError | None, refuse: str) -> tuple[int, int]:
        made = recorder(Files(end), Kernel(refuse))
        try:
            await made.snapshot(Trigger.REQUEST)
        except (SinkError, KernelError):
            return made.stored, made.failed
        return made.stored, made.failed

    full = SinkError("no space", path="/s")
    assert asyncio.run(scenario(None, "")) == (1, 0)
    assert asyncio.run(scenario(full, "")) == (0, 1)
    assert asyncio.run(scenario(None, "resume all")) == (0, 1)


@pytest.mark.parametrize("end", [None, SinkError("no space", path="/s")])
def test_other_streams_let_a_snapshot_pass_until_it_is_sealed(end: SinkError | None) -> None:
    """From its last write to its seal, or its failure; afterwards they take turns again."""

    async def scenario() -> list[str]:
        kernel = Kernel()
        made = recorder(Files(end), kernel)
        with suppress(SinkError):
            await made.snapshot(Trigger.REQUEST)
        return kernel.asked

    asked = asyncio.run(scenario())
    after = asked[asked.index("hurry") :]
    assert after == ["hurry", "hold 0", "pass", "take turns", "hold 0"]


class FullDisk(Files):
    """A full disk that loses a number of the ring's events in each snapshot."""

    def __init__(self, kernel: Kernel, lost: int) -> None:
        super().__init__(None)
        self._kernel = kernel
        self._lost = lost
        self.full = asyncio.Event()

    async def make_next(self) -> None:
        """The passes are over: what did not fit has been given up."""
        self._kernel.lost += self._lost
        self.full.set()
        await asyncio.sleep(0)


def test_a_snapshot_tells_its_own_loss() -> None:
    """It reports its own part of the loss; the end reports what was lost since it began."""

    async def scenario() -> list[int]:
        kernel = Kernel()
        kernel.lost = 1_000
        files = FullDisk(kernel, 7)
        made = recorder(files, kernel)
        told = [await made.snapshot(Trigger.REQUEST) for _ in range(2)]
        made.end()
        await made.take_last()
        kernel.lost += 40
        made.notify_last()
        return [one.lost.events["sink/disk_full"] for one in (*told, *made.snapshots) if one]

    assert asyncio.run(scenario()) == [7, 7, 40]


def test_the_end_tells_the_loss_of_what_is_under_way() -> None:
    """The session ends before a snapshot has told: the last one has its segments and its loss."""

    async def scenario() -> list[int]:
        kernel = Kernel()
        files = FullDisk(kernel, 7)
        made = recorder(files, kernel)
        waiting = asyncio.ensure_future(made.snapshot(Trigger.REQUEST))
        await files.full.wait()
        made.end()
        await made.take_last()
        assert await waiting is None
        kernel.lost += 40
        made.notify_last()
        return [one.lost.events["sink/disk_full"] for one in made.snapshots]

    assert asyncio.run(scenario()) == [47]


def test_the_end_takes_over_what_is_under_way() -> None:
    """A snapshot that waits for its segment gets it, though the session ends meanwhile."""

    async def scenario(finish: Callable[[SnapshotSegments], None]) -> tuple[int, bool]:
        first = SnapshotSegments(NOTE)
        first.expect(1)
        waiting = asyncio.ensure_future(first.ends())
        await asyncio.sleep(0)
        last = SnapshotSegments(NOTE, first.under_way())
        last.expect(2)
        finish(last)
        return len(await asyncio.wait_for(waiting, 10)), last.told()[1]

    def both(last: SnapshotSegments) -> None:
        last.notify(1, None)
        last.notify(2, None)

    assert asyncio.run(scenario(both)) == (0, True)
    assert asyncio.run(scenario(lambda last: last.notify(1, None))) == (0, False)
