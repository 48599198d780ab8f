# SPDX-License-Identifier: Apache-2.0
"""The address of a TCP listener."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from collectord.errors import UsageError

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", re.ASCII)
PORT_MAX: Final = 65_535
_HINT: Final = 'HOST:PORT, e.g. "127.0.0.1:9590" or "[::1]:9590"; "" turns it off'


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host, by name or number, and a port; port 0 selects a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse HOST:PORT, with an IPv6 address in brackets. Raises UsageError."""
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3]) > PORT_MAX:
            raise UsageError(f"{text!r} is not an address", hint=_HINT)
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        """Return the address as it is written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
