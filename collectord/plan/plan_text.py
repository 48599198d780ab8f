# SPDX-License-Identifier: Apache-2.0
"""Events, rings and sinks of a plan in words, and as JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from collectord.codec.perf_attr import AuxAction, BranchSampleType, ReadFormat, SampleType
from collectord.text import cpu_list
from collectord.text.foreign import plain
from collectord.text.units import show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from enum import IntFlag

    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.sink_plan import SinkPlan


def event_words(event: EventPlan) -> str:
    """Return an event as `check` prints it."""
    attr = event.attr
    rate = f"{attr.sample_period} Hz" if attr.freq else f"period {attr.sample_period}"
    words = [event.name, rate, str(event.basis)]
    if event.freezes:
        words.insert(1, "freezes its ring")
    if attr.sample_type & SampleType.STACK_USER:
        words.append(f"dwarf call chains of {attr.sample_stack_user} bytes")
    elif attr.sample_type & SampleType.BRANCH_STACK:
        words.append("lbr call chains")
    elif attr.sample_type & SampleType.CALLCHAIN:
        words.append("call chains")
    if event.filter:
        words.append(f"filter {event.filter!r}")
    words += [f"aux-action {action}" for action in _action_words(event.attr.aux_action)]
    if event.exclude_self:
        words.append("without collectord's own threads")
    if event.cpus:
        words.append(f"on CPUs {cpu_list.render(event.cpus)}")
    return ", ".join(words) + (f" ({event.note})" if event.note else "")


def _action_words(actions: int) -> Iterator[str]:
    for action in AuxAction:
        if actions & action and action.name is not None:
            yield action.name.lower().replace("_", "-")


def ring_words(rings: Iterable[RingPlan]) -> Iterator[str]:
    """Yield equal rings together, e.g. "2 x 512KiB data, wake at 128KiB"."""
    alike: dict[tuple[str, str, int, int, int, str], list[int]] = {}
    for ring in rings:
        sizes = (ring.data_bytes, ring.requested_bytes, ring.watermark_bytes)
        role = f"{ring.role}, overwritten" if ring.overwrite or ring.slots else str(ring.role)
        area = ring.aux.words() if ring.aux is not None else ""
        alike.setdefault((ring.source, role, *sizes, area), []).append(ring.cpu)
    for (source, role, size, requested, watermark, area), cpus in alike.items():
        shrunk = f" (of {show_bytes(requested)})" if size < requested else ""
        where = "one a thread" if source.startswith("perf") else "one for all CPUs"
        if cpus != [-1]:
            where = f"CPUs {cpu_list.render(cpus)}"
        wake = f"wake at {show_bytes(watermark)}, " if watermark else ""
        yield f"{source} {role}: {len(cpus)} x {show_bytes(size)}{shrunk}, {wake}{where}"
        if area:
            yield f"{source} aux: {len(cpus)} x {area}"


def sink_words(sink: SinkPlan) -> str:
    """Return the destination of records, as `check` prints it."""
    if sink.single_file is not None:
        return f"{sink.format} {sink.single_file}"
    limits = []
    if sink.segment_bytes:
        limits.append(show_bytes(sink.segment_bytes))
    if sink.segment_age_ns:
        limits.append(show_ns(sink.segment_age_ns))
    return f"{sink.format} in {sink.directory}, a segment: {' or '.join(limits) or 'no limit'}"


_FLAG_FIELDS = {
    "sample_type": SampleType,
    "read_format": ReadFormat,
    "branch_sample_type": BranchSampleType,
}


def event_dict(event: EventPlan) -> dict[str, Any]:
    """Return an event for `check --json`."""
    return {
        "index": event.index,
        "name": event.name,
        "ledger_basis": str(event.basis),
        **plain(event, "attr", "basis", "uncore", "counts_bytes", "freezes"),
        "tracepoint": str(event.tracepoint) if event.tracepoint else None,
        "attr": _attr_dict(event.attr),
    }


def _attr_dict(attr: PerfEventAttr) -> dict[str, Any]:
    """Return fields that are not 0; bit sets by name."""
    shown: dict[str, Any] = {}
    for item in fields(attr):
        value = getattr(attr, item.name)
        flags: type[IntFlag] | None = _FLAG_FIELDS.get(item.name)
        if flags is not None and value:
            shown[item.name] = [flag.name for flag in flags if value & flag]
        elif value:
            shown[item.name] = value if isinstance(value, bool) else int(value)
    return {"type": int(attr.type), "config": int(attr.config), **shown}
