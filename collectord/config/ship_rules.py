# SPDX-License-Identifier: Apache-2.0
"""Rules for what is shipped: of the table `[ship]`, and of what sessions say of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.config.problems import Problem, under

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema import Config, ShipConfig
    from collectord.config.schema_session import RedactConfig, SessionConfig

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252})", re.ASCII)
# Options of stores that are credentials.
_SECRET: Final = re.compile(r"key|secret|token|password|credential|sas|account", re.IGNORECASE)
_KEEP_MAX: Final = 64
_INTERVAL_MIN_NS: Final = 1_000_000_000


def check_ship(config: Config) -> Iterator[Problem]:
    """Yield problems of a whole configuration."""
    yield from under("ship", _ship(config.ship))
    for index, session in enumerate(config.session):
        yield from under(f"session[{index}]", _session(session))


def _ship(ship: ShipConfig) -> Iterator[Problem]:
    if ship.host and _HOST.fullmatch(ship.host) is None:
        yield Problem(
            "host", f"{ship.host!r} is not a valid host name", "letters, digits, _ . and -"
        )
    for name in ship.options:
        if _SECRET.search(name):
            hint = "anybody may read this file: put it into the credential `store`"
            yield Problem(f"options.{name}", "is a part of credentials", hint)
    for key in ("host_file", "directory"):
        path = getattr(ship, key)
        if not path.startswith("/"):
            yield Problem(key, f"{path!r} is not an absolute path")
    if ship.interval < _INTERVAL_MIN_NS:
        yield Problem("interval", "less than 1s")
    if not ship.cpu.percent:
        yield Problem("cpu", "is a share of one CPU", 'e.g. "10%"')


def _session(session: SessionConfig) -> Iterator[Problem]:
    if session.ship == "raw" and session.redact:
        hint = 'ship = "columns"'
        yield Problem("ship", "raw segments cannot be redacted", hint)
    for index, rule in enumerate(session.redact):
        yield from under(f"redact[{index}]", _redact(rule))


def _redact(rule: RedactConfig) -> Iterator[Problem]:
    if not rule.column:
        yield Problem("column", "no column is named", 'e.g. "*comm"')
    if not 0 <= rule.keep <= _KEEP_MAX:
        yield Problem("keep", f"{rule.keep} parts", f"0 to {_KEEP_MAX}")
