# SPDX-License-Identifier: Apache-2.0
"""The choice of a transport out of an ftrace ring, by the kernel's features and their costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import MissingFeature
from collectord.model import Transport

if TYPE_CHECKING:
    from collectord.config.schema_session import TransportName
    from collectord.facts.kernel_facts import FtraceFacts

# CPU ns per event of about 60 bytes in sub-buffers of 64 KiB, where nothing was measured: a page
# that is read is swapped out of the ring, copied and walked; splicing copies it into the page
# cache, and at seal it is read again and walked; GET_READER first walks it in the kernel.
DEFAULT_NS: Final = {Transport.READ: 15.0, Transport.MMAP: 37.0, Transport.SPLICE: 27.0}

_WANTS: Final = {
    Transport.MMAP: "Linux 6.10 or newer",
    Transport.SPLICE: "a kernel whose trace_pipe_raw can be spliced",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A transport, and the reason for it."""

    transport: Transport
    reason: str


def choose(facts: FtraceFacts, wanted: TransportName, *, resized: bool = False) -> Choice:
    """Return the requested transport, or for "auto" the cheapest one that is available.

    Args:
        facts: features of the kernel, and the measured costs.
        wanted: a transport, or "auto".
        resized: the rings change their size while they record, which a mapped one cannot.

    Raises:
        MissingFeature: the kernel does not have the requested transport.
    """
    has = {Transport.READ: True, Transport.MMAP: facts.mmap, Transport.SPLICE: facts.splice}
    if wanted != "auto":
        asked = Transport(wanted)
        if not has[asked]:
            raise MissingFeature(
                f"this kernel's ftrace rings do not have transport {asked}",
                feature=f"ftrace {asked}",
                hint=f'it takes {_WANTS[asked]}; "auto" and "read" work everywhere',
            )
        return Choice(asked, "as configured")
    left_out = [f"no {transport} in this kernel" for transport, here in has.items() if not here]
    if resized and has[Transport.MMAP]:
        has[Transport.MMAP] = False
        left_out.append("mapped rings cannot be resized")
    measured = all(transport in facts.transport_ns for transport, here in has.items() if here)
    known = facts.transport_ns if measured else DEFAULT_NS
    costs = {transport: known[transport] for transport, here in has.items() if here}
    # Among equals the first wins: reading needs no kernel feature and no work at seal.
    cheapest = min(costs, key=lambda transport: costs[transport])
    figures = ", ".join(f"{transport} {ns:.0f}" for transport, ns in costs.items())
    source = "measured" if measured else "not measured on this host, so by rule"
    reason = f"cheapest, ns an event: {figures} ({source})"
    return Choice(cheapest, "; ".join([reason, *left_out]))
