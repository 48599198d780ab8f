# SPDX-License-Identifier: Apache-2.0
"""A file with the rows of one table of a segment, and where a segment's rows are from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SESSION: Final = "session"
_BOOT: Final = "boot_id"


class TableFile(NamedTuple):
    """A file with all rows of a table.

    Attributes:
        table: its name.
        columns: as they are in the file.
        dropped: names of those that redaction has left out.
    """

    table: str
    path: Path
    rows: int
    columns: tuple[str, ...]
    dropped: tuple[str, ...]


class Place(NamedTuple):
    """The origin of a segment's rows, and the folder for files of them.

    Attributes:
        path: of the segment, of a set of one of its files.
        folder: for the files.
        session, boot_id: columns of all rows.
    """

    path: Path
    folder: Path
    session: str
    boot_id: str

    def constants(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """Return the texts that all rows of a table have, by column.

        Args:
            kinds: of the columns that the table has itself.
        """
        found = {_SESSION: self.session, _BOOT: self.boot_id}
        return {name: text for name, text in found.items() if name not in kinds}
