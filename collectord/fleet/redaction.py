# SPDX-License-Identifier: Apache-2.0
"""Columns that do not leave a host as they are: dropped, hashed with a key, or cut short.

DuckDB carries it out while it writes the rows. A hash is HMAC-SHA-256 with the key of the fleet,
so that the same name is the same text on all hosts, and nobody without the key finds it by trying.
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from collectord.reader.export_rows import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.sink.manifest import Manifest

_BLOCK_BYTES: Final = 64  # of SHA-256
_HEX: Final = 32  # 128 bits of a hash are told
KEY_MIN_BYTES: Final = 16


class Rule(NamedTuple):
    """A rule for columns.

    Attributes:
        column, table: patterns of their names.
        how: drop, hash or prefix.
        keep: parts of a path that a prefix has.
    """

    column: str
    table: str = "*"
    how: str = "drop"
    keep: int = 1


class Redaction(NamedTuple):
    """The rules of a session.

    Attributes:
        rules: as the configuration has them; the first one that fits a column holds.
        key: of hashes.
    """

    rules: Sequence[Rule] = ()
    key: bytes = b""

    def expression(self, table: str, column: str, kind: str) -> str | None:
        """Return what stands for a column in SQL; None if it is dropped.

        A column that is to be hashed or cut, and is no text, is dropped.

        Args:
            table: that it is in.
            column: its name.
            kind: of the decoder, such as `text`.
        """
        name = quoted(column)
        rule = self._rule(table, column)
        if rule is None:
            return name
        if rule.how == "drop" or kind.lower() not in {"text", "varchar"}:
            return None
        if rule.how == "hash":
            return f"{_hmac(self.key, name)} AS {name}"
        parts = rule.keep + 1  # before the first slash there is nothing
        return f"array_to_string(string_split({name}, '/')[:{parts}], '/') AS {name}"

    def _rule(self, table: str, column: str) -> Rule | None:
        for rule in self.rules:
            if fnmatchcase(table, rule.table) and fnmatchcase(column, rule.column):
                return rule
        return None

    def manifest(self, manifest: Manifest) -> Manifest:
        """Return a manifest without the texts that come from what was observed."""
        return msgspec.structs.replace(manifest, scope="", filters={}, build_ids={})


def _hmac(key: bytes, column: str) -> str:
    """Return the HMAC-SHA-256 of a text column as SQL, in hexadecimal digits; of null, null."""
    block = (key if len(key) <= _BLOCK_BYTES else hashlib.sha256(key).digest()).ljust(
        _BLOCK_BYTES, b"\0"
    )
    inner = _blob(bytes(byte ^ 0x36 for byte in block))
    outer = _blob(bytes(byte ^ 0x5C for byte in block))
    return f"left(sha256({outer} || unhex(sha256({inner} || encode({column})))), {_HEX})"


def _blob(data: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02X}" for byte in data) + "'::BLOB"
