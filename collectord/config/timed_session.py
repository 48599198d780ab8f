# SPDX-License-Identifier: Apache-2.0
"""The session that a request starts: its table, within the limits of `[control]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.config.decode import decode
from collectord.config.document import refuse_unusable
from collectord.config.problems import Problem, raise_first, under
from collectord.config.rules import check_session
from collectord.config.schema_session import (
    PerfSourceConfig,
    TimedSessionConfig,
    TracefsSourceConfig,
)
from collectord.model import ScopeKind
from collectord.text.units import RingSize, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.config.schema import ControlConfig
    from collectord.config.schema_session import SourceConfig

# Stands for the file in errors.
_PLACE: Final = "request"


def parse(document: Mapping[str, object], limits: ControlConfig, name: str) -> TimedSessionConfig:
    """Return the session of a request.

    Args:
        document: a `[[session]]` table as plain values, and `duration`.
        limits: bound it.
        name: of a session that the request does not name.

    Raises:
        ConfigError: an unknown or missing key, a wrong value, or one beyond a limit.
    """
    refuse_unusable(document, _PLACE)
    session = decode({"name": name, **document}, TimedSessionConfig, _PLACE)
    raise_first(check_session(session), _PLACE)
    raise_first(_beyond(session, limits), _PLACE)
    return session


def _beyond(session: TimedSessionConfig, limits: ControlConfig) -> Iterator[Problem]:
    """Yield what the limits do not allow."""
    if not 0 < session.duration <= limits.max_duration:
        hint = f"above 0, up to {show_ns(limits.max_duration)}"
        yield Problem("duration", f"{show_ns(session.duration)} is not allowed", hint)
    if session.target.scope is ScopeKind.COMMAND:
        yield Problem("target.scope", "only `collectord record` runs a command")
    for index, source in enumerate(session.source):
        yield from under(f"source[{index}]", _source(source, limits))


def _source(source: SourceConfig, limits: ControlConfig) -> Iterator[Problem]:
    allowed = ", ".join(limits.session_kinds)
    if source.kind not in limits.session_kinds:
        hint = f"allowed: {allowed}" if allowed else "allowed: none"
        yield Problem("kind", f"a source of kind {source.kind} cannot be started", hint)
    if isinstance(source, TracefsSourceConfig) and source.probes:
        hint = "the daemon's configuration may have some"
        yield Problem("probes", "probes change the kernel's code, and cannot be started", hint)
    if isinstance(source, PerfSourceConfig) and source.aux != RingSize():
        yield Problem("aux", "AUX areas cannot be started", "`collectord record` has some")
