# SPDX-License-Identifier: Apache-2.0
"""The plan of the toy source: one ring, one event. Becomes `collectord/plan/toy_source.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from collectord.codec.perf_attr import CLOCK_MONOTONIC, EventType, PerfEventAttr, SoftwareId
from collectord.model import Basis, RingRole
from collectord.plan.event_attrs import BASE_SAMPLE_TYPE, EventPlan
from collectord.plan.payload import Payload
from collectord.plan.ring_plan import RingPlan
from collectord.plan.source_draft import SourceDraft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.facts.kernel_facts import KernelFacts

SOURCE: Final = "toy"
_RING_BYTES: Final = 64 << 10
# The ring's memory and its wake-up.
_FILES: Final = 2


class Keys(Protocol):
    """The keys that the test puts into the configuration's schema."""

    @property
    def records(self) -> int:
        """Number of records to write."""

    @property
    def lost(self) -> int:
        """Number of records to count as lost."""


@dataclass(frozen=True, slots=True)
class ToyPlan(Payload):
    """The number of records that the source writes, and of those that it counts as lost."""

    records: int
    lost: int

    @property
    def watches_cpus(self) -> bool:
        """See `Payload`: its only ring is of no CPU."""
        return False


def draft(source: Keys, facts: KernelFacts) -> Iterator[SourceDraft]:
    """Plan a ring on the first CPU."""
    attr = PerfEventAttr(
        type=EventType.SOFTWARE,
        config=SoftwareId.DUMMY,
        sample_period=1,
        sample_type=BASE_SAMPLE_TYPE,
        sample_id_all=True,
        use_clockid=True,
        clockid=CLOCK_MONOTONIC,
    )
    ring = RingPlan(
        source=SOURCE,
        role=RingRole.DATA,
        cpu=facts.cpus_online[0],
        requested_bytes=_RING_BYTES,
        data_bytes=_RING_BYTES,
        watermark_bytes=_RING_BYTES // 4,
        events=(EventPlan(index=0, name=SOURCE, attr=attr, basis=Basis.EXACT),),
    )
    payload = ToyPlan(source.records, source.lost)
    yield SourceDraft(SOURCE, "perf.data", payload, rings=(ring,), files=_FILES)
