# SPDX-License-Identifier: Apache-2.0
"""The balance of an AUX area, from counters that are kept apart."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from collectord._native._core import AUX_HEAD_RULES, AuxCounters
from collectord.ledger.aux_ledger import (
    TRUNCATED,
    AuxBracket,
    AuxReading,
    aux_cut,
    aux_json,
    balance_aux,
)
from collectord.ledger.ledger_json import to_json
from collectord.model import Basis, LossKey, Reason, RingLabel, RingRole, Stage
from collectord.plan.aux_areas import HeadRule
from collectord.session.aux_counter_reader import AuxCounterReader
from collectord.source.ring import AuxHandle
from tests.support import balances

LABEL = RingLabel("s", "perf", RingRole.AUX, 1)
PLAN = balances.AREA_PLAN


def counters(**changes: Any) -> AuxCounters:  # noqa: ANN401 - fields of any type
    """Counters of an area from which 1000 bytes were taken and stored."""
    zeros = dict.fromkeys(AuxCounters._fields, 0)
    return AuxCounters(
        **{**zeros, "fill_buckets": (), "taken_bytes": 1000, "stored_bytes": 1000, **changes}
    )


def bracket(
    *,
    closed: bool = True,
    head: int = 1000,
    traced: int | None = 1200,
    **more: Any,  # noqa: ANN401
) -> AuxBracket:
    """Return a reading, both ends equal."""
    reading = AuxReading(head=head, traced=traced, lost_records=0)
    return AuxBracket(reading, counters(**more), reading, closed=closed)


def test_truncated_is_what_the_pmu_counted_and_the_kernel_had_no_room_for() -> None:
    """Both are the kernel's: neither comes from what was stored."""
    area = balance_aux(LABEL, PLAN, bracket(truncated=2))
    assert (area.basis, area.produced_bytes) == (Basis.EXACT, 1200)
    shown = aux_json(area)
    assert (shown["stored_bytes"], shown["truncated"]) == (1000, 2)
    assert area.lost_bytes["kernel_ring/truncated"] == 200
    assert area.unaccounted_bytes == 0


def test_without_a_count_of_bytes_only_occurrences_are_known() -> None:
    """Bytes handed over are balanced all the same."""
    area = balance_aux(LABEL, PLAN, bracket(traced=None, truncated=2))
    assert (area.basis, area.produced_bytes) == (Basis.LOST_ONLY, 1000)
    assert area.unaccounted_bytes == 0
    assert area.lost_bytes["kernel_ring/truncated"] is None


@pytest.mark.parametrize(
    ("changes", "unaccounted"),
    [
        ({"stored_bytes": 992, "taken_bytes": 992}, 8),  # forgotten between area and disk
        ({"stored_bytes": 1008, "taken_bytes": 1008}, 8),  # stored twice
        ({"stored_bytes": 900, "lost_disk_full_bytes": 100}, 0),
        ({"stored_bytes": 900, "lost_dropped_bytes": 60, "in_flight_bytes": 40}, 0),
        ({"stored_bytes": 600, "taken_bytes": 600, "quarantined_bytes": 400}, 0),
    ],
)
def test_what_is_missing_shows(changes: dict[str, Any], unaccounted: int) -> None:
    """Closed, the kernel's head is the sum of all places."""
    assert balance_aux(LABEL, PLAN, bracket(**changes)).unaccounted_bytes == unaccounted


def test_counts_that_contradict_each_other_show() -> None:
    """More was handed over than traced: that is no balance, whatever was stored."""
    assert balance_aux(LABEL, PLAN, bracket(head=1000, traced=900)).unaccounted_bytes == 100
    # Bytes that were certain to be truncated were not, in the end.
    short = replace(bracket(head=1000, traced=1200), truncated=250)
    assert balance_aux(LABEL, PLAN, short).unaccounted_bytes == 50


class Area:
    """An area whose counter and head are what the test says: the kernel, the handle, the ring."""

    def __init__(self) -> None:
        self.traced = self.head = 0

    def read_counter(self, fd: int, read_format: int) -> Any:  # noqa: ANN401 - of a reading
        """Return the bytes traced until now."""
        del fd, read_format
        return SimpleNamespace(value=self.traced, lost=0)

    def drained(self) -> Any:  # noqa: ANN401 - as much of it as is looked at
        """Return its ring, from which all was taken that was handed over."""
        counter: Any = SimpleNamespace(fd=3, read_format=0)
        own_map: Any = self
        handle = AuxHandle(own_map, PLAN, LABEL, 0, (counter,))

        def taken() -> AuxCounters:
            return counters(taken_bytes=self.head, stored_bytes=self.head)

        area = SimpleNamespace(handle=handle, ring=SimpleNamespace(counters=taken, id=1))
        return SimpleNamespace(areas=(area,))


def test_truncated_bytes_never_go_down() -> None:
    """Bytes traced and not handed over yet are not truncated; in the end all are known."""
    area = Area()
    counter_reader = AuxCounterReader(area, [area.drained()])  # type: ignore[arg-type]  # as much of it as is called
    seen = []
    for area.traced, area.head in ((3_000, 0), (20_000, 1_000), (20_000, 4_500), (21_000, 5_000)):
        counter_reader.measure()
        (balance,) = counter_reader.balances()
        seen.append(balance.lost_bytes["kernel_ring/truncated"])
    area.head = 5_096
    counter_reader.close()
    (balance,) = counter_reader.balances()
    assert balance.unaccounted_bytes == 0
    assert seen == [0, 14_904, 14_904, 14_904]
    assert balance.lost_bytes["kernel_ring/truncated"] == 15_904


class Lasting(AuxHandle):
    """An area that goes on, and of which an earlier process had a part."""

    __slots__ = ()
    noted = 0

    def goes_on(self) -> bool:
        """Whether it does."""
        return True

    def own(self, reading: AuxReading) -> AuxReading:
        """Return a reading without that part."""
        return reading.since(AuxReading(1_000, 1_200, 0))

    def note_truncated(self, count: int) -> None:
        """Keep the note."""
        Lasting.noted = count


def test_an_area_that_outlives_its_process_is_not_closed() -> None:
    """Its trace comes on while the last reading is taken, and a successor tells the rest."""
    area = Area()
    drained = area.drained()
    plain = drained.areas[0].handle
    drained.areas[0].handle = Lasting(plain.map, PLAN, LABEL, 0, plain.counters)
    counter_reader = AuxCounterReader(area, [drained])  # type: ignore[arg-type]  # as much of it as is called
    drained.areas[0].ring.counters = lambda: counters(taken_bytes=2_000, stored_bytes=2_000)
    area.traced, area.head = 3_200, 3_000
    counter_reader.measure()
    area.traced, area.head = 9_300, 3_500  # 500 bytes that it leaves in the area
    counter_reader.close()
    (balance,) = counter_reader.balances()
    assert (balance.produced_bytes, balance.unaccounted_bytes) == (8_100, 0)
    certain = 8_100 - 2_500 - PLAN.data_bytes
    assert balance.lost_bytes["kernel_ring/truncated"] == Lasting.noted == certain > 0


class Left:
    """Losses of earlier processes."""

    def shared_losses(self) -> dict[LossKey, int]:
        """Return it."""
        return {(Stage.STAGING, Reason.DROPPED): 70, TRUNCATED: 5}


def test_what_earlier_processes_lost_is_of_no_single_area() -> None:
    """It stands beside the areas, with CPU -1; where nothing was lost there is nothing."""
    area = Area()
    drained = area.drained()
    own, left = AuxCounterReader(area, [drained], [Left()]).balances()  # type: ignore[arg-type]  # as above
    assert (own.label, left.label) == (LABEL, replace(LABEL, cpu=-1))
    shown = aux_json(left)
    assert (shown["produced_bytes"], shown["stored_bytes"], shown["unaccounted_bytes"]) == (
        75,
        0,
        0,
    )
    told = {name: count for name, count in left.lost_bytes.items() if count}
    assert told == {"staging/dropped": 70, "kernel_ring/truncated": 5}


def test_a_running_area_is_bracketed() -> None:
    """The taken bytes lie between two readings of the head, or there is an error."""
    before, after = AuxReading(900, 900, 0), AuxReading(1100, 1100, 0)
    open_ = AuxBracket(before, counters(in_flight_bytes=7), after)
    assert balance_aux(LABEL, PLAN, open_).unaccounted_bytes == 0
    short = replace(open_, counters=counters(taken_bytes=880))
    assert balance_aux(LABEL, PLAN, short).unaccounted_bytes == 20
    over = replace(open_, counters=counters(taken_bytes=1150))
    assert balance_aux(LABEL, PLAN, over).unaccounted_bytes == 50


def test_a_recorder_has_no_such_balance() -> None:
    """Overwriting is no loss; its amount is unknown if the head is a place."""
    recorder = replace(PLAN, snapshot=True)
    area = balance_aux(LABEL, recorder, bracket(head=5000, overwritten_bytes=4000, windows=1))
    assert (area.produced_bytes, area.overwritten_bytes) == (5000, 4000)
    assert area.unaccounted_bytes is None
    assert (aux_json(area)["stored_bytes"], aux_json(area)["snapshots"]) == (1000, 1)
    learned = replace(recorder, head_rule=HeadRule.LEARNED)
    rule = AUX_HEAD_RULES.index(HeadRule.OFFSET)
    unknown = balance_aux(LABEL, learned, bracket(head=100, head_rule=rule))
    assert (unknown.produced_bytes, unknown.overwritten_bytes) == (None, None)
    assert unknown.unaccounted_bytes is None


def test_areas_stand_in_the_json_beside_the_rings() -> None:
    """In `--json` and status whole, in a manifest what balances."""
    (area, _) = (session := balances.traced("trace")).aux
    assert to_json(session)["aux"][0] == aux_json(area)
    assert aux_json(area)["lost_bytes"]["kernel_ring/truncated"] == 100
    assert aux_json(area)["disabled_ns"] == 1_500_000_000
    (kept,) = aux_cut([area])
    assert kept.items() <= aux_json(area).items()
    assert json.dumps(kept)
    assert to_json(balances.session("exec"))["aux"] == []
