# SPDX-License-Identifier: Apache-2.0
"""TOML files to a Config: one file, then its drop-ins."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.config.document import check_keys, convert, parse
from collectord.config.problems import raise_first
from collectord.config.rules import check_config
from collectord.config.schema import CODE_ONLY, Config
from collectord.errors import ConfigError, UnsafePath
from collectord.folders.walk import read_file
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEFAULT_PATH: Final = Path("/etc/collectord/collectord.toml")
DROP_IN_DIRECTORY: Final = "collectord.d"

_LIMIT_BYTES: Final = 4 << 20


def config_files(path: Path = DEFAULT_PATH) -> tuple[Path, ...]:
    """The file and the drop-ins beside it, `collectord.d/*.toml` by name."""
    return (path, *sorted((path.parent / DROP_IN_DIRECTORY).glob("*.toml")))


def load(paths: Sequence[Path]) -> Config:
    """Read and merge configuration files.

    Of a table's keys the last one wins; a session replaces the earlier one of its name. Each
    file is checked by itself first, so an error names the file that has it.

    Raises:
        ConfigError: unreadable, no TOML, an unknown key, a wrong type, unit or combination.
    """
    tables: dict[str, dict[str, Any]] = {}
    sessions: dict[str, dict[str, Any]] = {}
    for path in paths:
        document = _read(path)
        check_keys(document, Config, str(path), hidden=CODE_ONLY)
        raise_first(check_config(convert(document, Config, str(path))), str(path))
        for key, value in document.items():
            if key != "session":
                tables[key] = tables.get(key, {}) | value
        for session in document.get("session", ()):
            sessions[session["name"]] = session | {"origin": str(path)}
    merged = {**tables, "session": tuple(sessions.values())}
    config = convert(merged, Config, "")
    # Values that each file may have had right alone, such as staging and chunk.
    raise_first(check_config(config), ", ".join(map(str, paths)))
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_file(path, _LIMIT_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot be read: {reason}", path=str(path)) from error
    except UnsafePath as error:
        raise ConfigError(f"cannot be read: it {error.reason}", path=str(path)) from error
    document = parse(data, str(path))
    for session in _sessions(document):
        _resolve_user(session, str(path))
    return document


def _sessions(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sessions = document.get("session")
    for session in sessions if isinstance(sessions, list) else ():
        if isinstance(session, dict):
            yield session


def _resolve_user(session: dict[str, Any], path: str) -> None:
    """Put a user's id in the place of its name."""
    target = session.get("target")
    name = target.get("user") if isinstance(target, dict) else None
    if not isinstance(target, dict) or not isinstance(name, str):
        return
    try:
        number = name.isascii() and name.isdigit()
        target["user"] = int(name) if number else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError) as error:  # of a number, thousands of digits
        raise ConfigError(
            f"no user {name!r}",
            path=path,
            key="session.target.user",
            hint=did_you_mean(name, (entry.pw_name for entry in pwd.getpwall())),
        ) from error
