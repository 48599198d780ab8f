# SPDX-License-Identifier: Apache-2.0
"""A store that nothing reaches: it tells what would be put."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from collectord.errors import NotStored
from collectord.fleet.segment_rows import columns_in
from collectord.fleet.store import ObjectInfo


class WouldPut(NamedTuple):
    """An object that would be put; `columns` are those of a file of rows."""

    key: str
    bytes: int
    columns: tuple[str, ...] = ()


class DryStore:
    """Takes everything, and keeps small objects until it ends.

    Attributes:
        objects: what would have been put, in its order.
    """

    def __init__(self) -> None:
        self.objects: list[WouldPut] = []
        self._small: dict[str, bytes] = {}

    def put_new(self, key: str, data: bytes | Path) -> bool:
        """Note an object."""
        if isinstance(data, Path):
            columns = columns_in(data) if key.endswith(".parquet") else ()
            self.objects.append(WouldPut(key, data.stat().st_size, columns))
        else:
            self._small[key] = data
            self.objects.append(WouldPut(key, len(data)))
        return True

    def head(self, key: str) -> ObjectInfo | None:
        """Return what was noted of an object."""
        found = [one for one in self.objects if one.key == key]
        return ObjectInfo(key, found[-1].bytes) if found else None

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Return a small object that was noted. Raises NotStored."""
        del limit_bytes
        if key not in self._small:
            raise NotStored(f"{key} was not put", key=key)
        return self._small[key]

    def digest(self, key: str) -> tuple[int, str]:
        """Raise NotStored: every object was put just now."""
        raise NotStored(f"{key} was not put", key=key)

    def download(self, key: str, target: Path) -> None:
        """Raise NotStored, likewise."""
        del target
        raise NotStored(f"{key} was not put", key=key)
