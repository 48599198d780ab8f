# SPDX-License-Identifier: Apache-2.0
"""The credentials of the shipper, which a service manager hands to it alone.

`store` has a line NAME=VALUE for each option of the store, such as `aws_secret_access_key`;
`redact` has the key of hashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.errors import ConfigError, UnsafePath
from collectord.fleet.redaction import KEY_MIN_BYTES
from collectord.folders.walk import read_file

if TYPE_CHECKING:
    from pathlib import Path

STORE: Final = "store"
REDACT: Final = "redact"
_LIMIT_BYTES: Final = 64 << 10


def store_options(folder: Path | None) -> dict[str, str]:
    """Return the options in the credential `store`; none without one. Raises ConfigError."""
    data = _read(folder, STORE)
    options: dict[str, str] = {}
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError("is not text", path=f"{folder}/{STORE}") from error
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            hint = "NAME=VALUE, such as aws_access_key_id=..."
            raise ConfigError("is not an option", path=f"{folder}/{STORE}:{number}", hint=hint)
        options[name.strip().lower()] = value.strip()
    return options


def redaction_key(folder: Path | None, *, needed: bool) -> bytes:
    """Return the key of hashes. Raises ConfigError if it is needed, and missing or short."""
    if not needed:
        return b""
    key = _read(folder, REDACT).strip()
    if len(key) < KEY_MIN_BYTES:
        raise ConfigError(
            f"a rule of redact hashes, and the credential {REDACT!r} has no key of "
            f"{KEY_MIN_BYTES} bytes or more",
            path=str(folder) if folder else "",
            hint="`openssl rand -hex 32` makes one, the same for all hosts of a fleet",
        )
    return key


def _read(folder: Path | None, name: str) -> bytes:
    """Return a credential, empty if there is none."""
    if folder is None:
        return b""
    path = folder / name
    try:
        return read_file(path, _LIMIT_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", path=str(path)) from error
    except UnsafePath as error:
        raise ConfigError(f"cannot be read: it {error.reason}", path=str(path)) from error
