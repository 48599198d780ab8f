# SPDX-License-Identifier: Apache-2.0
"""A position in untrusted bytes: every step is checked against their end."""

from __future__ import annotations

import struct
from typing import Final

from collectord.errors import CodecError

U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")


class Cursor:
    """Reads `data` from `at` on.

    Every method raises CodecError, and does not move, if the data end too early.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def take(self, size_bytes: int) -> bytes:
        """Return the next bytes."""
        if size_bytes > len(self._data) - self.at:
            message = f"{size_bytes} bytes reach past the end"
            raise CodecError(message, offset=self.at, reason="short")
        start, self.at = self.at, self.at + size_bytes
        return self._data[start : self.at]

    def number(self, form: struct.Struct) -> int:
        """Return the next U32 or U64."""
        return int.from_bytes(self.take(form.size), "little")

    def string(self) -> bytes:
        """Return the bytes before the next NUL, and skip the NUL."""
        end = self._data.find(b"\0", self.at)
        if end < 0:
            raise CodecError("string without end", offset=self.at, reason="string")
        start, self.at = self.at, end + 1
        return self._data[start:end]

    def expect(self, text: bytes) -> None:
        """Skip `text`; raise CodecError if other bytes are there."""
        at = self.at
        if self.take(len(text)) != text:
            raise CodecError(f"no {text!r}", offset=at, reason="magic")
