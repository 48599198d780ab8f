# SPDX-License-Identifier: Apache-2.0
"""Metric families of AUX areas: their ledger in bytes, and what the kernel flagged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from collectord.aux_ledger import AUX_LOSS_PAIRS, FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.aux_ledger import AuxBalance
    from collectord.ledger import SessionBalance

    Labels = tuple[str, ...]

_NS_PER_SECOND: Final = 1_000_000_000
_SESSION: Final = ("session", "source")


def families(sessions: Sequence[SessionBalance], *, per_cpu: bool) -> Iterator[Metric]:
    """All families, of the sessions that have AUX areas.

    `produced` and `unaccounted` exist where somebody else than this program counts them.
    """
    names = (*_SESSION, "cpu") if per_cpu else _SESSION
    areas = [
        ((session.name, session.source, *((str(area.label.cpu),) if per_cpu else ())), area)
        for session in sessions
        for area in session.aux
    ]
    yield _sum(
        CounterMetricFamily(
            "collectord_aux_produced_bytes",
            "AUX bytes that were traced, or handed over where the PMU does not count them.",
            labels=names,
        ),
        areas,
        lambda area: area.produced,
    )
    yield _sum(
        CounterMetricFamily(
            "collectord_aux_stored_bytes", "AUX bytes written to segments.", labels=names
        ),
        areas,
        lambda area: area.stored,
    )
    lost = CounterMetricFamily(
        "collectord_aux_lost_bytes",
        "AUX bytes lost, by where and why; truncated ones only where the PMU counts bytes.",
        labels=(*names, "stage", "reason"),
    )
    for labels, group in _grouped(areas).items():
        for stage, reason in AUX_LOSS_PAIRS:
            found = [area.lost[f"{stage}/{reason}"] for area in group]
            known = [count for count in found if count is not None]
            if len(known) == len(found):
                lost.add_metric((*labels, stage, reason), sum(known))
    yield lost
    yield _sum(
        CounterMetricFamily(
            "collectord_aux_overwritten_bytes",
            "AUX bytes that a flight recorder overwrote before a snapshot took them; not loss.",
            labels=names,
        ),
        areas,
        lambda area: area.overwritten,
    )
    yield _sum(
        GaugeMetricFamily(
            "collectord_aux_unaccounted_bytes",
            "AUX bytes handed over that are neither stored, lost nor in flight.",
            labels=names,
        ),
        areas,
        lambda area: area.unaccounted,
    )
    yield _sum(
        GaugeMetricFamily(
            "collectord_aux_window_bytes",
            "AUX bytes that a snapshot would store now; 0 of a stream.",
            labels=names,
        ),
        areas,
        lambda area: area.window,
    )
    yield _flags(names, areas)
    yield _sum(
        CounterMetricFamily(
            "collectord_aux_lost_records",
            "AUX records that did not fit the data ring; no trace is lost by that.",
            labels=names,
        ),
        areas,
        lambda area: area.lost_records,
    )
    yield _sum(
        CounterMetricFamily(
            "collectord_aux_disabled_seconds",
            "Time that events were stopped because their AUX area was full.",
            labels=names,
        ),
        areas,
        lambda area: area.stopped_ns / _NS_PER_SECOND,
    )


def _flags(names: Labels, areas: Sequence[tuple[Labels, AuxBalance]]) -> Metric:
    family = CounterMetricFamily(
        "collectord_aux_records",
        "AUX records by the flag that the kernel gave them; each flag counts for itself.",
        labels=(*names, "flag"),
    )
    for labels, group in _grouped(areas).items():
        for flag in FLAGS:
            family.add_metric((*labels, flag), sum(area.flagged[flag] for area in group))
    return family


def _grouped(areas: Sequence[tuple[Labels, AuxBalance]]) -> dict[Labels, list[AuxBalance]]:
    groups: dict[Labels, list[AuxBalance]] = defaultdict(list)
    for labels, area in areas:
        groups[labels].append(area)
    return groups


def _sum(
    family: CounterMetricFamily | GaugeMetricFamily,
    areas: Sequence[tuple[Labels, AuxBalance]],
    value: Callable[[AuxBalance], float | None],
) -> Metric:
    """Areas with equal labels added; nothing where one of them does not know."""
    for labels, group in _grouped(areas).items():
        found = [value(area) for area in group]
        known = [count for count in found if count is not None]
        if len(known) == len(found):
            family.add_metric(labels, sum(known))
    return family
