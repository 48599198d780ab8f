# SPDX-License-Identifier: Apache-2.0
"""Settings beside the sessions: those that a running daemon takes over, and those that it keeps.

What the core, the sockets and the state directory are made of stays as it was at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import fields, replace

from collectord.text.foreign import plain_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.config.schema import Config

# The tables that apply to all sessions.
_TABLES: Final = ("daemon", "metrics", "control", "retention", "alertmanager", "bpf")
# Keys that a reload applies; those of [bpf] to programs that it compiles.
_LIVE: Final = {
    "daemon": ("heartbeat", "memory", "budget", "budget_pauses"),
    "retention": ("bytes", "age", "free"),
    "bpf": ("programs", "python", "headers", "cache", "compile_time", "compile_memory"),
}


def settings_of(config: Config) -> dict[str, Any]:
    """Return all settings as plain data, by their dotted keys."""
    return {
        f"{table}.{item.name}": plain_value(getattr(getattr(config, table), item.name))
        for table in _TABLES
        for item in fields(getattr(config, table))
    }


def need_restart(keys: Iterable[str]) -> tuple[str, ...]:
    """Return those dotted keys that a running daemon cannot take over."""
    live = {f"{table}.{key}" for table, keys_of in _LIVE.items() for key in keys_of}
    return tuple(key for key in keys if key not in live)


def taken_over(running: Config, wanted: Config) -> Config:
    """Return the wanted configuration as far as a daemon that runs another can take it over."""
    tables = {
        table: replace(
            getattr(running, table),
            **{key: getattr(getattr(wanted, table), key) for key in _LIVE.get(table, ())},
        )
        for table in _TABLES
    }
    return replace(wanted, **tables)
