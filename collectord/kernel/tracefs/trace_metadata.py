# SPDX-License-Identifier: Apache-2.0
"""The metadata of a trace.dat, read from tracefs and /proc."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord import __version__
from collectord.codec.kallsyms import FUNCTIONS, are_hidden
from collectord.codec.trace_dat_head import Metadata
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import MissingFeature

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from collectord.kernel.tracefs.mount import Tracefs
    from collectord.kernel.values.instance_settings import TraceEvent

# The kernel's printf formats that turn an address into a symbol: %ps, %pS, %pB, %pf, %pF.
_SYMBOL: Final = re.compile(rb"%-?\d*p[sSBfF]")


def read_metadata(
    tracefs: Tracefs, header_page: bytes, events: Iterable[TraceEvent], clock: str, *, proc: Path
) -> Metadata:
    """Read the formats of these events and of ftrace's own, and the names that they refer to.

    The kernel's symbols, some MB, are read only for events that print addresses as such.

    Args:
        tracefs: the tree.
        header_page: header page of the instance.
        events: events that its rings may hold; one that is gone meanwhile is left out.
        clock: trace clock of the instance.
        proc: root of procfs.

    Raises:
        MissingPrivilege, MissingFeature, KernelError: tracefs cannot be read.
    """
    formats: dict[str, list[bytes]] = {}
    for one in dict.fromkeys(Tracepoint(event.system, event.name) for event in events):
        with suppress(MissingFeature):
            text = tracefs.event_format(one)
            formats.setdefault(one.system, []).append(text)
    host = os.uname()
    symbols = any(_SYMBOL.search(text) for texts in formats.values() for text in texts)
    return Metadata(
        header_page=header_page,
        header_event=tracefs.header_event(),
        events=formats,
        ftrace_events=tuple(tracefs.ftrace_formats().values()),
        clock=clock,
        uname=f"{host.sysname} {host.nodename} {host.release} {host.machine}",
        version=f"collectord {__version__}",
        printk_formats=_optional(tracefs.root / "printk_formats"),
        kallsyms=_functions(_optional(proc / "kallsyms")) if symbols else b"",
    )


def _functions(kallsyms: bytes) -> bytes:
    """Return the lines of functions; none where the kernel hides addresses."""
    lines: list[bytes] = FUNCTIONS.findall(kallsyms)
    return b"" if are_hidden(lines) else b"".join(lines)


def _optional(path: Path) -> bytes:
    """Read a file that only provides names; without it readers show addresses."""
    with suppress(OSError):
        return path.read_bytes()
    return b""
