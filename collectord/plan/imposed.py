# SPDX-License-Identifier: Apache-2.0
"""What recording an event costs the thread in which it happens, as far as a plan can tell.

The figures were measured once, on Linux 6.18 on a virtual x86-64 CPU, as the row `imposed` of
`make bench` measures them: CPU time of a million getppid() with raw_syscalls:sys_enter recorded,
less that of as many with nothing recorded. They are no measurement of the host that is planned
for; what they tell is which source and which option is dear. Who reads a ring is in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.perf_attr import SampleType
from collectord.model import RingRole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.plan.session_plan import SessionPlan

# ns for an event of some 50 bytes by kind of source, the tracepoint's own hook included. What
# blktrace writes was not measured.
_WRITTEN_NS: Final = {"perf": 770, "tracefs": 230}
# Of what a BPF program submits, by what takes it, the program's run included.
_SUBMITTED_NS: Final = {"perf": 670, "ringbuf": 200}
# A filter of the kernel that nearly all events pass, over our own threads' ids or the user's own.
_FILTER_NS: Final = 20
# The kernel's frames and the program's, by frame pointers or with a copy of its stack.
_CHAIN_NS: Final = 2500


@dataclass(frozen=True, slots=True)
class Imposed:
    """What the dearest event of a session costs, ns; `parts` add up to it."""

    parts: dict[str, int]

    @property
    def event_ns(self) -> int:
        """All of it."""
        return sum(self.parts.values())

    def words(self) -> str:
        """As `check` prints it."""
        parts = ", ".join(f"{what} {ns}" for what, ns in self.parts.items())
        return f"imposes some {self.event_ns} ns on what is traced, for each event: {parts}"

    def to_dict(self) -> dict[str, Any]:
        """The same for `check --json`."""
        return {"event_ns": self.event_ns, "parts": self.parts}


def imposed_by(plan: SessionPlan) -> Imposed | None:
    """What a session's events are expected to cost; None where nothing was measured."""
    outputs = (output for program in plan.payload.programs_run for output in program.outputs)
    submitted = (_SUBMITTED_NS[output.transport] for output in outputs)
    written = max(submitted, default=_WRITTEN_NS.get(plan.kind))
    if written is None or not any(ring.role is RingRole.DATA for ring in plan.rings):
        return None
    return Imposed({"record": written, **dict(_options(plan))})


def _options(plan: SessionPlan) -> Iterator[tuple[str, int]]:
    events = [event for ring in plan.rings if ring.role is RingRole.DATA for event in ring.events]
    filtered = (event.tracepoint and (event.filter or event.exclude_self) for event in events)
    if plan.payload.is_filtered or any(filtered):
        yield "filter", _FILTER_NS
    wanted = SampleType(0)
    for event in events:
        wanted |= event.attr.sample_type
    if wanted & (SampleType.CALLCHAIN | SampleType.STACK_USER):
        yield "call chain", _CHAIN_NS
