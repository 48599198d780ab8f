# SPDX-License-Identifier: Apache-2.0
"""Sources open rings. A new one is a module and a line of this table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.source import bpf_opening, perf, relay, tracefs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.source.base import Source

SOURCES: Final[Mapping[str, Source]] = {
    "perf": perf.open_session,
    "tracefs": tracefs.open_session,
    "bpf": bpf_opening.open_session,
    "relay": relay.open_session,
}
