# SPDX-License-Identifier: Apache-2.0
"""The objects of a store as files that DuckDB reads by ranges."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fsspec import AbstractFileSystem

from collectord.errors import NotStored

if TYPE_CHECKING:
    from collectord.fleet.store import Store

_NEVER: Final = datetime(2000, 1, 1, tzinfo=UTC)
# The end of an object, which says what is where in it: it is read first, in one request.
_TAIL_BYTES: Final = 64 << 10


class StoreFiles(AbstractFileSystem):
    """A file system of fsspec over a store, which is only read.

    Attributes:
        protocol: the scheme of its files.
    """

    def __init__(self, store: Store, protocol: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.protocol = protocol
        self._store = store
        self._sizes: dict[str, int] = {}

    def read(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. Raises StoreError."""
        return self._store.get_range(key, start, length)

    def size_bytes(self, key: str) -> int:
        """Return the size of an object, which is asked once. Raises StoreError."""
        known = self._sizes.get(key)
        if known is not None:
            return known
        found = self._store.head(key)
        if found is None:
            raise NotStored(f"{self._store.url} has no {key}", key=key)
        self._sizes[key] = found.bytes
        return found.bytes

    # DuckDB calls these.

    def open(self, path: str, mode: str = "rb", **_options: object) -> _File:  # type: ignore[override]
        """Open an object to be read."""
        if mode != "rb":
            raise PermissionError(path)
        return _File(self, self._key(path))

    def info(self, path: str, **_options: object) -> dict[str, Any]:
        """Return name, size and kind of an object."""
        key = self._key(path)
        return {"name": key, "size": self.size_bytes(key), "type": "file"}

    def modified(self, _path: str) -> datetime:
        """Return the same time for all: objects never change."""
        return _NEVER

    def glob(self, path: str, **_options: object) -> list[str]:  # type: ignore[override]
        """Return the one object of a name: no name is a pattern here."""
        return [self._key(path)]

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self.protocol}://")


class _File:
    """An object that is open."""

    def __init__(self, files: StoreFiles, key: str) -> None:
        self._files = files
        self._key = key
        self._at = 0
        self._tail: tuple[int, bytes] | None = None
        self.size = files.size_bytes(key)
        self.closed = False

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the place that is read next."""
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._at

    def read(self, length: int = -1) -> bytes:
        """Read from the place on."""
        rest = self.size - self._at
        length = rest if length < 0 else min(length, rest)
        data = self._part(self._at, length) if length > 0 else b""
        self._at += len(data)
        return data

    def _part(self, start: int, length: int) -> bytes:
        tail = self.size - min(self.size, _TAIL_BYTES)
        if start < tail:
            return self._files.read(self._key, start, length)
        if self._tail is None:
            self._tail = tail, self._files.read(self._key, tail, self.size - tail)
        begins, data = self._tail
        return data[start - begins : start - begins + length]

    def close(self) -> None:
        """Forget what was read."""
        self._tail = None
        self.closed = True
