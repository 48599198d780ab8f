# SPDX-License-Identifier: Apache-2.0
"""The labels of a host, by which questions to a fleet choose: a file of the host has them.

It is TOML with a text for each label, such as `role = "db"`. The release of the kernel is a label
of every host, `kernel`.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Final

from collectord.errors import ConfigError, UnsafePath
from collectord.fleet.commit import LABELS_MAX
from collectord.folders.walk import read_file

if TYPE_CHECKING:
    from pathlib import Path

KERNEL: Final = "kernel"
# The table of hosts has columns of these names already.
_TAKEN: Final = ("host", KERNEL)
_LIMIT_BYTES: Final = 64 << 10
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_VALUE_MAX: Final = 256


def read_labels(path: Path) -> dict[str, str]:
    """Return the labels in a host file; none if there is no such file.

    Raises:
        ConfigError: it cannot be read, or has something else than texts.
    """
    place = str(path)
    try:
        data = read_file(path, _LIMIT_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", path=place) from error
    except UnsafePath as error:
        raise ConfigError(f"cannot be read: it {error.reason}", path=place) from error
    try:
        document = tomllib.loads(data.decode())
    except ValueError as error:  # of both
        raise ConfigError(f"it is not TOML: {error}", path=place) from error
    labels: dict[str, str] = {}
    for name, value in document.items():
        if _NAME.fullmatch(name) is None or name in _TAKEN:
            taken = " and ".join(_TAKEN)
            hint = f"small letters, digits and _, beginning with a letter; {taken} are taken"
            raise ConfigError("is not the name of a label", path=place, key=name, hint=hint)
        if not isinstance(value, str) or len(value) > _VALUE_MAX:
            hint = f"a text of at most {_VALUE_MAX} characters"
            raise ConfigError("is not the text of a label", path=place, key=name, hint=hint)
        labels[name] = value
    if len(labels) >= LABELS_MAX:
        raise ConfigError(f"{len(labels)} labels", path=place, hint=f"fewer than {LABELS_MAX}")
    return labels
