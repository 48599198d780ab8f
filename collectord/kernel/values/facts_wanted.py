# SPDX-License-Identifier: Apache-2.0
"""The facts of a host that are to be probed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collectord.codec.tracepoint import Tracepoint

# The directory of a host's own BPF programs.
LOCAL: Final = Path("/etc/collectord/bpf")


@dataclass(frozen=True, slots=True)
class BpfWanted:
    """The programs and tools to probe for.

    Attributes:
        names: programs, None for all that exist.
        python: the interpreter that has bcc, and its version; "" and the reason if there is none.
        local: directory of the host's own programs.
        headers: a tree of kernel headers, "" to find one.
    """

    names: tuple[str, ...] | None
    python: tuple[str, str]
    local: Path = LOCAL
    headers: str = ""


@dataclass(frozen=True, slots=True)
class FactsWanted:
    """The facts that are needed of a host; what is not asked for is not tried.

    Attributes:
        tracepoints: those whose ids are needed, or patterns of them; None for all. If one of
            them matches nothing, all are read too, so that a plan can name the nearest.
        mount: mount tracefs where it is not; without it this process looks at it by a mount that
            ends with the probe, and nothing is changed.
        ftrace: try what a tracefs source needs, in a temporary instance, in about 0.1 s; otherwise
            no feature is known to be missing.
        measure: measure the costs of ftrace's transports too.
        bpf: programs that are needed, and their tracepoints; None to skip BPF, of which then
            nothing is known to be missing.
        relay: devices and channels of relay that are needed; True for all that can be found, False
            to skip relay.
        tracing: PMUs to try for an AUX area and for pausing it, by opening events. With all
            tracepoints, those whose trace perf can decode too.
    """

    tracepoints: tuple[Tracepoint, ...] | None = None
    mount: bool = False
    ftrace: bool = False
    measure: bool = False
    bpf: BpfWanted | None = None
    relay: bool | tuple[str, ...] = False
    tracing: tuple[str, ...] = ()
