# SPDX-License-Identifier: Apache-2.0
"""Read stage: a Parquet file, written group by group with columns that the core has laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import zstandard

from collectord import __version__
from collectord._native._columns import Chunk
from collectord.codec.parquet import (
    DICTIONARY,
    MAGIC,
    ColumnPages,
    Group,
    constant_data,
    dictionary_header,
    footer,
    page_header,
    text_entry,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LEVEL: Final = 1
_TEXT: Final = "text"


class ParquetFile:
    """A file of one table, open only while something is written: a segment may have thousands.

    Args:
        path: of the file, which is made with the first group.
        columns: kinds of the decoder by name.
        constants: texts of further columns, by name, that all rows have.

    Attributes:
        rows: that were written.
    """

    def __init__(
        self, path: Path, columns: Mapping[str, str], constants: Mapping[str, str]
    ) -> None:
        self.path = path
        self.columns = {**columns, **dict.fromkeys(constants, _TEXT)}
        self.rows = 0
        self._constants = [value.encode() for value in constants.values()]
        self._packer = zstandard.ZstdCompressor(level=_LEVEL)
        self._groups: list[Group] = []
        self._bytes = 0

    def add(self, rows: int, chunks: Sequence[Chunk]) -> None:
        """Append a group of rows. Raises OSError."""
        pieces = [] if self._groups else [MAGIC]
        at = self._bytes + sum(map(len, pieces))
        pages = []
        for chunk in (*chunks, *(_constant(text, rows) for text in self._constants)):
            made = self._pages(chunk)
            dictionary_bytes = sum(map(len, made[:-2]))
            plain_bytes = len(chunk.data) + len(chunk.dictionary)
            headers_bytes = sum(map(len, made[::2]))
            pages.append(
                ColumnPages(
                    chunk.values,
                    chunk.nulls,
                    chunk.encoding,
                    at if chunk.entries else None,
                    at + dictionary_bytes,
                    plain_bytes + headers_bytes,
                    sum(map(len, made)),
                    chunk.least,
                    chunk.most,
                )
            )
            at += pages[-1].packed_bytes
            pieces += made
        self._append(pieces)
        self._groups.append(Group(rows, pages))
        self.rows += rows

    def end(self) -> None:
        """Write the footer. Raises OSError."""
        self._append([footer(self.columns, self._groups, f"collectord {__version__}")])

    def _pages(self, chunk: Chunk) -> list[bytes]:
        """Return the pages of a column: each has a header and what it holds."""
        made: list[bytes] = []
        if chunk.entries:
            packed = self._packer.compress(chunk.dictionary)
            header = dictionary_header(chunk.entries, len(chunk.dictionary), len(packed))
            made += [header, packed]
        packed = self._packer.compress(chunk.data)
        header = page_header(chunk.encoding, chunk.values, len(chunk.data), len(packed))
        return [*made, header, packed]

    def _append(self, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        with self.path.open("ab") as file:
            file.write(data)
        self._bytes += len(data)


def _constant(text: bytes, rows: int) -> Chunk:
    """Return the column that has one text in all rows."""
    return Chunk(rows, 0, DICTIONARY, constant_data(rows), 1, text_entry(text), text, text)
