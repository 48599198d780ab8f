# SPDX-License-Identifier: Apache-2.0
"""Names of the metrics that BPF programs export, checked over all programs of a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.programs.bpf_program import BpfProgram

PREFIX: Final = "collectord_bpf_"
_TOTAL: Final = "_total"
# Metrics of every program; `metrics.bpf_families` makes them.
RUNS: Final = PREFIX + "program_runs"
RUN_SECONDS: Final = PREFIX + "program_run_seconds"
RECURSION_MISSES: Final = PREFIX + "program_recursion_misses"
SUBMIT_FAILURES: Final = PREFIX + "submit_failures"
TABLE_TRUNCATED: Final = PREFIX + "table_truncated"
_OWN: Final = {
    RUNS: "counter",
    RUN_SECONDS: "counter",
    RECURSION_MISSES: "counter",
    SUBMIT_FAILURES: "counter",
    TABLE_TRUNCATED: "gauge",
}


def family(name: str) -> str:
    """Return the family's name for a metric of a manifest, without the `_total` of counters."""
    return PREFIX + name.removesuffix(_TOTAL)


def exported(name: str, kind: str) -> str:
    """Return a scrape's name for a metric of a manifest: counters end in `_total`."""
    return family(name) + (_TOTAL if kind == "counter" else "")


def check_metrics(programs: Iterable[BpfProgram]) -> None:
    """Check that programs which run together export metrics that a scrape can tell apart.

    Two may export one metric: it has the samples of both, with their `program` label. Then it must
    have one type, and no other family the series of a histogram (`_bucket`, `_count`, `_sum`).

    Raises:
        PlanError: two metrics collide.
    """
    known = {name: _Family(name, kind, "") for name, kind in _OWN.items()}
    series = {one: name for name, kind in _OWN.items() for one in _series(name, kind)}
    for program in programs:
        for metric in program.manifest.metric:
            made = _Family(family(metric.name), metric.type, program.name)
            first = known.setdefault(made.name, made)
            if not first.program or first.type != made.type:
                raise _collision(made, first)
            for one in _series(made.name, made.type):
                taken = known[series.setdefault(one, made.name)]
                if taken.name != made.name:
                    raise _collision(made, taken)


class _Family(NamedTuple):
    """A metric, and the first program that exports it; "" for a metric of all programs."""

    name: str
    type: str
    program: str


def _collision(made: _Family, first: _Family) -> PlanError:
    whose = f"that of {first.program}" if first.program else "collectord's own"
    return PlanError(
        f"{made.type} {made.name} of BPF program {made.program} collides with {first.type} "
        f"{first.name}, {whose}",
        what=made.name,
        hint="rename it in the manifest of one of them",
    )


def _series(name: str, kind: str) -> Iterator[str]:
    """Yield the names of a family's series, and its own."""
    yield name
    if kind == "histogram":
        yield from (f"{name}_bucket", f"{name}_count", f"{name}_sum")
    elif kind == "counter":
        yield name + _TOTAL
