# SPDX-License-Identifier: Apache-2.0
"""How wrong the order of events of different hosts may be, by what their clocks were said to be.

The time of a record is that of the host's own wall clock: read beside CLOCK_MONOTONIC, which
stamps the records, when a segment began and ended. It is wrong by what the kernel says of that
clock at most, by the steps that somebody made in it meanwhile, and by the time of a reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.text.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.fleet.commit import Commit
    from collectord.sink.manifest import Clocks

_PAIR: Final = 2


class ClockBound(NamedTuple):
    """The clocks of some hosts.

    Attributes:
        error_ns: the most by which each one's is wrong, by host.
        unknown: hosts of whose clock nothing is known: no time service keeps it, or nothing told.
    """

    error_ns: dict[str, int]
    unknown: tuple[str, ...]

    @property
    def between_ns(self) -> int:
        """The most by which the times of two of the hosts are wrong against each other."""
        return sum(sorted(self.error_ns.values())[-_PAIR:])

    def words(self) -> Iterator[str]:
        """Yield what there is to say of the order of events."""
        if len(self.error_ns) >= _PAIR:
            worst = sorted(self.error_ns, key=lambda host: -self.error_ns[host])[:_PAIR]
            yield (
                "times of different hosts are on one line to within "
                f"{self.between_ns / NS_PER_MS:,.3f} ms (the most wrong: {' and '.join(worst)}); "
                "events that are nearer may have happened in another order"
            )
        if self.unknown:
            is_one = len(self.unknown) == 1
            whose = (
                f"clock of {self.unknown[0]} is"
                if is_one
                else f"clocks of {len(self.unknown):,} hosts, such as {self.unknown[0]}, are"
            )
            yield f"the {whose} not known to be kept by a time service: nothing bounds the error"


def clock_bound(commits: Iterable[Commit]) -> ClockBound:
    """Return what the commits tell of the clocks of their hosts."""
    errors: dict[str, int] = {}
    unknown: set[str] = set()
    for one in commits:
        state = one.clock
        if state is None or not state.synchronized or state.max_error_us is None:
            unknown.add(one.host)
            continue
        within = max((_within(manifest.clocks) for manifest in one.decoded()), default=0)
        error = state.max_error_us * NS_PER_US + within
        errors[one.host] = max(error, errors.get(one.host, 0))
    known = {host: error for host, error in errors.items() if host not in unknown}
    return ClockBound(known, tuple(sorted(unknown)))


def _within(clocks: Clocks) -> int:
    """Return by how much a segment's own readings are apart, and how long one took."""
    readings = [
        reading
        for reading in (clocks.open, *clocks.flushes, clocks.close)
        if reading is not None and reading.realtime_ns
    ]
    if not readings:
        return 0
    offsets = [reading.realtime_ns - reading.monotonic_ns for reading in readings]
    return max(offsets) - min(offsets) + max(reading.bracket_ns for reading in readings)
