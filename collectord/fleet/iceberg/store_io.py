# SPDX-License-Identifier: Apache-2.0
"""The files of a table's metadata in a store, as pyiceberg reads and writes them."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

from pyiceberg.io import FileIO, InputFile, OutputFile

from collectord.errors import StoreConflict, StoreError

if TYPE_CHECKING:
    from pyiceberg.io import InputStream, OutputStream

    from collectord.fleet.store import Store

METADATA_MAX_BYTES: Final = 256 << 20


class StoreIO(FileIO):
    """The objects of a store by the addresses that tables have.

    Attributes:
        location: the address of the store.
    """

    def __init__(self, store: Store, location: str) -> None:
        super().__init__()
        self.store = store
        self.location = location

    def key_of(self, address: str) -> str:
        """Return the key of an address. Raises StoreError for one of another place."""
        key = address.removeprefix(f"{self.location}/")
        if key == address:
            raise StoreError(f"{address} is not below {self.location}", key="")
        return key

    def new_input(self, location: str) -> InputFile:
        """Return an object to be read."""
        return _Input(self, location)

    def new_output(self, location: str) -> OutputFile:
        """Return an object to be put."""
        return _Output(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse: what others may be reading is left."""
        raise NotImplementedError(location)


class _Input(InputFile):
    def __init__(self, files: StoreIO, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._key = files.key_of(location)

    def __len__(self) -> int:
        found = self._files.store.head(self._key)
        return found.bytes if found is not None else 0

    def exists(self) -> bool:
        return self._files.store.head(self._key) is not None

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002  # pyiceberg's
        return BytesIO(self._files.store.get(self._key, METADATA_MAX_BYTES))


class _Output(OutputFile):
    def __init__(self, files: StoreIO, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._key = files.key_of(location)
        self._bytes = 0

    def __len__(self) -> int:
        return self._bytes

    def exists(self) -> bool:
        return self._files.store.head(self._key) is not None

    def to_input_file(self) -> InputFile:
        return _Input(self._files, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002  # never
        return _Put(self)

    def put(self, data: bytes) -> None:
        """Put the object, whose name is new."""
        if not self._files.store.put_new(self._key, data):
            raise StoreConflict(f"{self._key} exists", key=self._key)
        self._bytes = len(data)


class _Put(BytesIO):
    """Bytes that are put as they are closed."""

    def __init__(self, target: _Output) -> None:
        super().__init__()
        self._target = target

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._target.put(data)
