# SPDX-License-Identifier: Apache-2.0
"""Sources of a configuration, with events and filters as a file spells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectord.config import call_graph as call_graphs
from collectord.config import event_spec, trace_names
from collectord.config.event_filter import Filter
from collectord.config.schema_session import (
    EventConfig,
    PerfSourceConfig,
    TraceEventConfig,
    TracefsSourceConfig,
)

if TYPE_CHECKING:
    from collectord.config.schema_session import When


def perf_event(text: str, filter: str = "", **rates: int) -> EventConfig:  # noqa: A002 - the key
    """Return an entry of a perf source's `events`."""
    event = event_spec.parse_choices(text)
    return EventConfig(event=event, filter=Filter.parse(filter), **rates)


def trace_event(text: str, filter: str = "", when: When = "always") -> TraceEventConfig:  # noqa: A002 - the key
    """Return an entry of a tracefs source's `events`."""
    return TraceEventConfig(event=trace_names.parse(text), filter=filter, when=when)


def perf_source(
    *events: str | EventConfig,
    filter: str = "",  # noqa: A002 - the key
    call_graph: str = "",
    **settings: Any,  # noqa: ANN401 - of any type
) -> PerfSourceConfig:
    """Return a perf source."""
    return PerfSourceConfig(
        events=tuple(perf_event(one) if isinstance(one, str) else one for one in events),
        filter=Filter.parse(filter),
        call_graph=call_graphs.parse(call_graph) if call_graph else None,
        **settings,
    )


def tracefs_source(*events: str | TraceEventConfig, **settings: Any) -> TracefsSourceConfig:  # noqa: ANN401
    """Return a tracefs source."""
    entries = tuple(trace_event(one) if isinstance(one, str) else one for one in events)
    return TracefsSourceConfig(events=entries, **settings)
