# SPDX-License-Identifier: Apache-2.0
"""Loading of TOML files to a Config: one file, then its drop-ins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from collectord.config.decode import decode
from collectord.config.document import parse
from collectord.config.problems import raise_first
from collectord.config.rules import check_config
from collectord.config.schema import Config
from collectord.errors import ConfigError, UnsafePath
from collectord.folders.walk import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema_session import SessionConfig

DEFAULT_PATH: Final = Path("/etc/collectord/collectord.toml")
DROP_IN_DIRECTORY: Final = "collectord.d"

_LIMIT_BYTES: Final = 4 << 20


def config_files(path: Path = DEFAULT_PATH) -> tuple[Path, ...]:
    """Return the file and the drop-ins beside it, `collectord.d/*.toml` by name."""
    return (path, *sorted((path.parent / DROP_IN_DIRECTORY).glob("*.toml")))


def load(paths: Sequence[Path]) -> Config:
    """Read and merge configuration files.

    Of a table's keys the last one wins; a session replaces the earlier one of its name. Each file
    is checked by itself first, so that an error names the right file.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, a wrong type, unit or combination.
    """
    tables: dict[str, Any] = {}
    sessions: dict[str, SessionConfig] = {}
    for path in paths:
        document = _read(path)
        config = decode(document, Config, str(path))
        raise_first(check_config(config), str(path))
        for name in document.keys() - {"session"}:
            own = getattr(config, name)
            given = {key: getattr(own, key) for key in document[name]}
            tables[name] = replace(tables.get(name, own), **given)
        for session in config.session:
            sessions[session.name] = replace(session, origin=str(path))
    config = Config(**tables, session=tuple(sessions.values()))
    # Values that may each be right in its file alone, such as staging and chunk.
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
    return parse(data, str(path))
