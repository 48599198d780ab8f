# SPDX-License-Identifier: Apache-2.0
"""Every counter of the core appears in a metric, in the status, or in both."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
import pytest

from collectord._native._core import (
    AuxCounters,
    Core,
    CoreCounters,
    RingCounters,
    SidebandCounters,
)
from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.codec.perf_record import SampleId
from collectord.codec.perf_sideband import Comm, Mmap2, encode
from collectord.ledger.aux_ledger import AuxBracket, AuxReading, balance_aux
from collectord.ledger.ledger_json import to_json
from collectord.ledger.record_ledger import FILL_BUCKETS, balance_session
from collectord.metrics import prometheus
from collectord.model import (
    Basis,
    ClockReading,
    Geometry,
    Produced,
    RingLabel,
    RingRole,
    Transport,
)
from collectord.session.counter_reader import CounterReader, Drained
from collectord.source.base import Abilities
from collectord.source.channel_ring import BlktraceRing, ChannelRing
from collectord.source.ftrace_ring import FtraceRing
from collectord.source.perf_ring import OverwritableRing, PairedRing, PerfRing
from tests.support import balances

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.aux_areas import AuxPlan
    from collectord.source.ring import RingHandle

NATIVE: Final = Path(__file__).resolve().parents[3] / "collectord" / "_native"
_COMMON: Final[Any] = {
    "fd": -1,
    "basis": Basis.EXACT,
    "geometry": Geometry(4096, 1024, 8192),
    "label": RingLabel("s", "perf", RingRole.DATA, 0),
}
_PERF: Final[Any] = {**_COMMON, "map": None, "time_offset": 0, "time_trailer": 0}
_PAGES: Final[Any] = {**_COMMON, "stats_fd": -1, "subbuf_bytes": 4096, "subbufs": 2}
HANDLES: Final[tuple[RingHandle, ...]] = (
    PerfRing(**_PERF),
    PairedRing(**_PERF, held=True),
    OverwritableRing(**_PERF, held=True),
    FtraceRing(**_PAGES, transport=Transport.READ),
    FtraceRing(**_PAGES, transport=Transport.SPLICE),
    ChannelRing(**_COMMON),
    BlktraceRing(**_COMMON),
)


def numbered(fields: Iterable[str]) -> dict[str, Any]:
    """Counters that differ from each other, of a ring in quarantine."""
    found: dict[str, Any] = {field: 1000 + number for number, field in enumerate(fields)}
    for field, value in {
        "fill_buckets": (1,) * FILL_BUCKETS,
        "quarantined": 1,
        "quarantine_reason": 1,
        "faults": 0,
        "head_rule": 0,
    }.items():
        if field in found:
            found[field] = value
    return found


def another(counters: Any, field: str) -> Any:  # noqa: ANN401 - a tuple with names
    """Return the counters with another value of this one."""
    value = getattr(counters, field)
    if field == "quarantined":
        return counters._replace(quarantined=0)
    more = (value[0] + 1, *value[1:]) if isinstance(value, tuple) else value + 1
    return counters._replace(**{field: more})


def shown(session: SessionBalance) -> tuple[str, str]:
    """Return what `/v1/status` and `/metrics` show of a session."""
    # Times of nanoseconds after the epoch are told to the last of them.
    status = replace(balances.status(session), clocks=ClockReading(0, 0, 0, 0))
    registry = prometheus.registry(lambda: status, kernel_release="6.12.0")
    return json.dumps(to_json(session)), prometheus_client.generate_latest(registry).decode()


def shown_ring(handle: RingHandle, counters: RingCounters) -> list[tuple[str, str]]:
    """Return the same for a session with one ring, while it runs and when it is closed."""
    reading = Produced(value=10**6, lost=None, read_events=10**6)
    ring: Any = SimpleNamespace(id=0, counters=lambda: counters)
    source: Any = SimpleNamespace(abilities=Abilities(), read_produced=lambda _: reading)
    counter_reader = CounterReader(source, [Drained(handle, ring)], ())
    running = counter_reader.balances()
    counter_reader.close()
    both = (running, counter_reader.balances())
    return [shown(balance_session("s", "perf", "system", one)) for one in both]


@pytest.mark.parametrize("field", RingCounters._fields)
def test_what_is_counted_of_a_ring_is_told(field: str) -> None:
    """Each counter is shown for a kind of ring that counts it."""
    base = RingCounters(**numbered(RingCounters._fields))
    other = another(base, field)
    assert any(shown_ring(handle, base) != shown_ring(handle, other) for handle in HANDLES)


def shown_area(counters: AuxCounters, plan: AuxPlan) -> tuple[str, str]:
    """Return what is shown of a session with an AUX area."""
    reading = AuxReading(head=10**6, traced=10**6, lost_records=0)
    area = balance_aux(
        RingLabel("s", "perf", RingRole.AUX, 0), plan, AuxBracket(reading, counters, reading)
    )
    return shown(replace(balances.session("s"), aux=(area,)))


@pytest.mark.parametrize("field", AuxCounters._fields)
def test_what_is_counted_of_an_area_is_told(field: str) -> None:
    """Each counter is shown for a stream, or for a flight recorder."""
    base = AuxCounters(**numbered(AuxCounters._fields))
    other = another(base, field)
    plans = (balances.AREA_PLAN, replace(balances.AREA_PLAN, snapshot=True))
    assert any(shown_area(base, plan) != shown_area(other, plan) for plan in plans)


@pytest.mark.parametrize("field", SidebandCounters._fields)
def test_what_is_counted_of_sideband_is_told(field: str) -> None:
    """Known tasks and mappings are shown, and records dropped for lack of memory."""
    session = balances.session("s")
    other = replace(session, sideband=session.sideband._replace(**{field: 1}))
    assert shown(session) != shown(other)


@pytest.mark.parametrize("field", CoreCounters._fields)
def test_what_is_counted_of_the_core_is_told(field: str) -> None:
    """Only metrics show it, since no session owns it."""
    status = balances.status()
    core = another(status.core, field)
    registries = (
        prometheus.registry(lambda: status, kernel_release="6.12.0"),
        prometheus.registry(lambda: replace(status, core=core), kernel_release="6.12.0"),
    )
    one, other = map(prometheus_client.generate_latest, registries)
    assert one != other


def test_each_counter_is_read() -> None:
    """Whatever the core keeps as a counter is read by somebody."""
    declared: set[str] = set()
    read: set[str] = set()
    for path in NATIVE.iterdir():
        if path.suffix not in {".c", ".h", ".pxi"}:
            continue
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        called = re.findall(r"counter__read\(&[\w>.()-]*?(\w+)(?:\[\w+\])?\)", code)
        read.update(
            called if path.suffix == ".c" else re.findall(r"\b[pwras]\.(?:\w+\.)*(\w+)", code)
        )
        if path.suffix == ".h":
            for names in re.findall(r"\bcounter_t ([^*;()]+);", code):
                declared.update(re.findall(r"(\w+)(?:\[\w+\])?\s*(?:,|$)", names))
    assert declared - read == set()
    assert len(declared) > 50


def test_what_sideband_has_no_memory_for_is_counted() -> None:
    """Tasks and mappings that are known, and those that are not."""
    attr = PerfEventAttr(sample_type=SampleType.TIME, sample_id_all=True)
    stream = Core().add_stream(sideband_bytes=1 << 16)
    stream.load_sideband(encode(Comm(7, 7, b"seven"), attr, SampleId()))
    stream.load_sideband(
        encode(Mmap2(7, 7, 0x1000, 0x1000, 0, 5, 2, b"/bin/seven"), attr, SampleId())
    )
    known = stream.sideband_counters()
    assert (known.tasks, known.maps, known.dropped, known.files_dropped) == (1, 1, 0, 0)
    assert 0 < known.bytes < 1 << 16
    for tid in range(10_000):
        stream.load_sideband(encode(Comm(tid, tid, b"many"), attr, SampleId()))
    full = stream.sideband_counters()
    assert known.tasks < full.tasks < 10_000
    assert full.dropped > 0
    assert full.bytes <= 1 << 16
