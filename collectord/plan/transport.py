# SPDX-License-Identifier: Apache-2.0
"""Which transport takes pages out of an ftrace ring: what the kernel has, what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import MissingFeature
from collectord.model import Transport

if TYPE_CHECKING:
    from collectord.config.schema import TransportName
    from collectord.facts.kernel_facts import FtraceFacts

# CPU ns per event of some 60 bytes in sub-buffers of 64 KiB, where nothing was measured: a page
# that is read is swapped out of the ring, copied and walked; splicing copies it into the page
# cache, and at seal it is read again and walked; GET_READER walks it in the kernel first.
DEFAULT_NS: Final = {Transport.READ: 15.0, Transport.MMAP: 37.0, Transport.SPLICE: 27.0}

_WANTS: Final = {
    Transport.MMAP: "Linux 6.10 or newer",
    Transport.SPLICE: "a kernel whose trace_pipe_raw can be spliced",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A transport, and why it is this one."""

    transport: Transport
    reason: str


def choose(facts: FtraceFacts, wanted: TransportName, *, resized: bool = False) -> Choice:
    """Take the transport that was asked for, or of those that can be had the cheapest.

    Args:
        facts: what the kernel has, and the measured costs.
        wanted: a transport, or "auto".
        resized: the rings change their size while they record, which a mapped one cannot.

    Raises:
        MissingFeature: the kernel does not have the one that was asked for.
    """
    has = {Transport.READ: True, Transport.MMAP: facts.mmap, Transport.SPLICE: facts.splice}
    if wanted != "auto":
        asked = Transport(wanted)
        if not has[asked]:
            raise MissingFeature(
                f"transport {asked}: this kernel's ftrace rings do not have it",
                feature=f"ftrace {asked}",
                hint=f'it takes {_WANTS[asked]}; "auto" and "read" work everywhere',
            )
        return Choice(asked, "as asked for")
    left_out = [f"no {transport} in this kernel" for transport, here in has.items() if not here]
    if resized and has[Transport.MMAP]:
        has[Transport.MMAP] = False
        left_out.append("mapped rings cannot be resized")
    measured = all(transport in facts.transport_ns for transport, here in has.items() if here)
    known = facts.transport_ns if measured else DEFAULT_NS
    costs = {transport: known[transport] for transport, here in has.items() if here}
    # Of equals the first: reading needs nothing of the kernel and nothing at seal.
    cheapest = min(costs, key=lambda transport: costs[transport])
    figures = ", ".join(f"{transport} {ns:.0f}" for transport, ns in costs.items())
    source = "measured" if measured else "not measured here, so by rule"
    reason = f"cheapest, ns an event: {figures} ({source})"
    return Choice(cheapest, "; ".join([reason, *left_out]))
