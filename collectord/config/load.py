# SPDX-License-Identifier: Apache-2.0
"""Loading of TOML files to a Config: one file, then its drop-ins."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from collectord.config.decode import decode
from collectord.config.document import parse
from collectord.config.problems import raise_first
from collectord.config.rules import check_config
from collectord.config.schema import Config
from collectord.config.trigger_rules import check_listener, check_sessions_of_triggers
from collectord.errors import ConfigError, UnsafePath
from collectord.folders.walk import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema_session import SessionConfig
    from collectord.config.schema_trigger import TriggerConfig

DEFAULT_PATH: Final = Path("/etc/collectord/collectord.toml")
DROP_IN_DIRECTORY: Final = "collectord.d"

_LIMIT_BYTES: Final = 4 << 20


def config_files(path: Path = DEFAULT_PATH) -> tuple[Path, ...]:
    """Return the file and the drop-ins beside it, `collectord.d/*.toml` by name."""
    return (path, *sorted((path.parent / DROP_IN_DIRECTORY).glob("*.toml")))


class Loaded(NamedTuple):
    """A configuration, and the SHA-256 of its files' bytes, one after the other."""

    config: Config
    sha256: str


def load(paths: Sequence[Path]) -> Config:
    """Return the configuration of some files. Raises as `load_files`."""
    return load_files(paths).config


def load_files(paths: Sequence[Path]) -> Loaded:
    """Read and merge configuration files.

    Of a table's keys the last one wins; a session or a trigger replaces the earlier one of its
    name. Each file is checked by itself first, so that an error names the right file.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, a wrong type, unit or combination.
    """
    tables: dict[str, Any] = {}
    sessions: dict[str, SessionConfig] = {}
    triggers: dict[str, TriggerConfig] = {}
    digest = hashlib.sha256()
    for path in paths:
        data = _read(path)
        digest.update(data)
        document = parse(data, str(path))
        config = decode(document, Config, str(path))
        raise_first(check_config(config), str(path))
        for name in document.keys() - {"session", "trigger"}:
            own = getattr(config, name)
            given = {key: getattr(own, key) for key in document[name]}
            tables[name] = replace(tables.get(name, own), **given)
        for session in config.session:
            sessions[session.name] = replace(session, origin=str(path))
        triggers |= {trigger.name: trigger for trigger in config.trigger}
    found = tuple(sessions.values()), tuple(triggers.values())
    config = Config(**tables, session=found[0], trigger=found[1])
    # Values that may each be right in its file alone, such as staging and chunk.
    places = ", ".join(map(str, paths))
    raise_first(check_config(config), places)
    raise_first(check_sessions_of_triggers(config), places)
    raise_first(check_listener(config), places)
    return Loaded(config, digest.hexdigest())


def _read(path: Path) -> bytes:
    try:
        return read_file(path, _LIMIT_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot be read: {reason}", path=str(path)) from error
    except UnsafePath as error:
        raise ConfigError(f"cannot be read: it {error.reason}", path=str(path)) from error
