# SPDX-License-Identifier: Apache-2.0
"""Expected cost of recording an event in the thread in which it happens.

The figures were measured once, on Linux 6.18 on a virtual x86-64 CPU, as the row `imposed` of
`make bench` measures them: CPU time of a million getppid() with raw_syscalls:sys_enter recorded,
less that of as many with nothing recorded. They do not measure the host that is planned for; they
show which source and which option is expensive. The cost of reading a ring is not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.perf_attr import SampleType
from collectord.model import RingRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.plan.payload import Payload
    from collectord.plan.ring_plan import RingPlan

# ns for an event of about 50 bytes by kind of source, the tracepoint's own hook included.
_WRITTEN_NS: Final = {"perf": 770, "tracefs": 230}
# ns for an event of blktrace: 0.34 of an ftrace event of the same runs (91 and 267 ns, the least
# of 50 runs of each in turn), scaled to the one above. It is the CPU time of a thread that submits
# 40,000 reads to a loop device, 64 at a time, with a trace that nobody reads, less that without
# one. It makes 3.07 events a read, counted at the tracepoints that blktrace hooks; those of the
# completion are another thread's.
_BLOCK_NS: Final = 80
# ns for a BPF program's submission by transport, the program's run included.
_SUBMITTED_NS: Final = {"perf": 670, "ringbuf": 200}
# The same for a record that a flight recorder keeps: 0.65 of an ftrace event of the same runs (257
# and 393 ns, of context switches and wake-ups by turns), scaled to the one above.
_KEPT_NS: Final = 150
# ns for a kernel filter that nearly all events pass, over our own threads' ids or the user's own.
_FILTER_NS: Final = 20
# ns for the kernel's frames and the program's, by frame pointers or with a copy of its stack.
_CHAIN_NS: Final = 2500


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """The cost of a session's most expensive event, ns; `parts` add up to it."""

    parts: dict[str, int]

    @property
    def event_ns(self) -> int:
        """The sum of the parts in ns."""
        return sum(self.parts.values())

    def words(self) -> str:
        """Return the cost as `check` prints it."""
        parts = ", ".join(f"{what} {ns}" for what, ns in self.parts.items())
        return f"each event costs the traced programs some {self.event_ns} ns: {parts}"

    def to_dict(self) -> dict[str, Any]:
        """Return the cost for `check --json`."""
        return {"event_ns": self.event_ns, "parts": self.parts}


def expected_probe_cost(
    kind: str, rings: Sequence[RingPlan], payload: Payload
) -> ProbeCost | None:
    """Return the expected cost of a session's events; None where only a client knows.

    Args:
        kind: the kind of its sources.
        rings: its rings; those of the sideband do not matter.
        payload: the rest of its sources.
    """
    outputs = (output for program in payload.programs_run for output in program.outputs)
    submitted = [_SUBMITTED_NS[output.transport] for output in outputs]
    submitted += [_KEPT_NS for program in payload.programs_run if program.kept]
    record = _BLOCK_NS if payload.is_blktrace else _WRITTEN_NS.get(kind)
    written = max(submitted, default=record)
    data = [ring for ring in rings if ring.role is RingRole.DATA]
    if written is None or not data:
        return None
    return ProbeCost({"record": written, **dict(_options(data, payload))})


def _options(rings: Sequence[RingPlan], payload: Payload) -> Iterator[tuple[str, int]]:
    events = [event for ring in rings for event in ring.events]
    filtered = (event.tracepoint and (event.filter or event.exclude_self) for event in events)
    if payload.is_filtered or any(filtered):
        yield "filter", _FILTER_NS
    wanted = SampleType(0)
    for event in events:
        wanted |= event.attr.sample_type
    if wanted & (SampleType.CALLCHAIN | SampleType.STACK_USER):
        yield "call chain", _CHAIN_NS
