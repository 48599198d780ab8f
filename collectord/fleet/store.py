# SPDX-License-Identifier: Apache-2.0
"""An object store, or a folder that is used as one, by the package obstore.

What is put is there as a whole or not at all, and never replaces what has the key. Errors say
whether to try again: `StoreUnavailable`, or not before somebody has changed something.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from collectord.errors import (
    CollectordError,
    NotStored,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UsageError,
    install_command,
)
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A larger file is put in parts, of which each is kept in memory.
PART_BYTES: Final = 32 << 20
SCHEMES: Final = ("s3", "gs", "az", "file")
_PIECE_BYTES: Final = 4 << 20
_TIMEOUT: Final = timedelta(seconds=60)
_CONNECT: Final = timedelta(seconds=10)
_RETRIES: Final = 2
_TEXT_MAX: Final = 300


class ObjectInfo(NamedTuple):
    """An object of a store."""

    key: str
    bytes: int


class Keeps(Protocol):
    """The calls that a shipment makes; `Store` says more of each."""

    def put_new(self, key: str, data: bytes | Path) -> bool:
        """Put an object, unless there is one with its key."""

    def head(self, key: str) -> ObjectInfo | None:
        """Return what the store says of an object."""

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Return an object."""

    def digest(self, key: str) -> tuple[int, str]:
        """Read an object, and return its bytes and their SHA-256."""

    def download(self, key: str, target: Path) -> None:
        """Write an object to a new file."""


class Store:
    """A store below one address.

    Attributes:
        url: the address, as the user has it.
    """

    def __init__(self, url: str, backend: Any) -> None:  # noqa: ANN401  # of obstore
        self.url = url
        self._obstore = _obstore()
        self._backend = backend

    @classmethod
    def open(
        cls,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        make: bool = False,
        timeout: timedelta = _TIMEOUT,
    ) -> Store:
        """Open a store; nothing is asked of it yet.

        Args:
            url: `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `az://CONTAINER/PATH`, `file:///PATH`, or
                the path of a folder.
            options: settings and credentials by obstore's names, such as `aws_endpoint`; what is
                not there is taken from the environment, and from where the cloud's hosts have it.
            make: a folder is made if it is not there.
            timeout: of one request.

        Raises:
            UsageError: it is no such address.
            StoreError: it cannot be opened.
            CollectordError: obstore is not installed.
        """
        obstore = _obstore()
        folder = folder_of(url)
        if folder is not None:
            if not make and not folder.is_dir():
                raise StoreError(f"{url} is not a folder", key="", hint="make it, or name another")
            with _errors(url, ""):
                return cls(url, obstore.store.LocalStore(folder, mkdir=make))
        given = dict(options or {})
        plain = any(
            value.startswith("http://") for name, value in given.items() if "endpoint" in name
        )
        client = {"timeout": timeout, "connect_timeout": _CONNECT, "allow_http": plain}
        retry = {"max_retries": _RETRIES, "retry_timeout": timeout}
        with _errors(url, ""):
            backend = obstore.store.from_url(
                url, config=given, client_options=client, retry_config=retry
            )
        return cls(url, backend)

    def head(self, key: str) -> ObjectInfo | None:
        """Return what the store says of an object; None if there is none. Raises StoreError."""
        try:
            with _errors(self.url, key):
                return _info(self._obstore.head(self._backend, key))
        except NotStored:
            return None

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Return an object of at most `limit_bytes`.

        Raises:
            NotStored: there is none.
            StoreError: it is larger, or cannot be read.
        """
        with _errors(self.url, key):
            result = self._obstore.get(self._backend, key)
            if result.meta["size"] > limit_bytes:
                raise StoreError(f"{key} has more than {limit_bytes} bytes", key=key)
            return bytes(result.bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object, less if it ends before. Raises as `get`."""
        with _errors(self.url, key):
            return bytes(self._obstore.get_range(self._backend, key, start=start, length=length))

    def digest(self, key: str) -> tuple[int, str]:
        """Read an object, and return its bytes and their SHA-256. Raises as `get`."""
        digest = hashlib.sha256()
        size_bytes = 0
        with _errors(self.url, key):
            stream = self._obstore.get(self._backend, key).stream(min_chunk_size=_PIECE_BYTES)
            for piece in stream:
                digest.update(piece)
                size_bytes += len(piece)
        return size_bytes, digest.hexdigest()

    def download(self, key: str, target: Path) -> None:
        """Write an object to a new file. Raises as `get`, and OSError."""
        with target.open("xb") as file, _errors(self.url, key):
            for piece in self._obstore.get(self._backend, key).stream(min_chunk_size=_PIECE_BYTES):
                file.write(piece)

    def objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with whole parts, in no certain order.

        Raises StoreError.
        """
        with _errors(self.url, prefix):
            for found in self._obstore.list(self._backend, prefix or None, chunk_size=1000):
                yield from map(_info, found)

    def list_folder(self, prefix: str = "") -> tuple[list[str], list[ObjectInfo]]:
        """Return {folders, objects} that are directly below a prefix. Raises StoreError."""
        with _errors(self.url, prefix):
            found = self._obstore.list_with_delimiter(self._backend, prefix or None)
        return sorted(map(str, found["common_prefixes"])), [*map(_info, found["objects"])]

    def put_new(self, key: str, data: bytes | Path) -> bool:
        """Put an object, unless there is one with its key.

        A file beyond `PART_BYTES` is put in parts, which no store does on a condition: two who do
        so at once must have the same bytes for a key.

        Returns:
            whether it was put: False if the key was taken.

        Raises:
            StoreError: it may have been put, or not.
        """
        if isinstance(data, Path) and data.stat().st_size > PART_BYTES:
            if self.head(key) is not None:
                return False
            with _errors(self.url, key):
                self._obstore.put(
                    self._backend, key, data, chunk_size=PART_BYTES // 2, max_concurrency=1
                )
            return True
        try:
            with _errors(self.url, key):
                self._obstore.put(self._backend, key, data, mode="create")
        except _TakenError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Put an object, in the place of what has the key. Raises StoreError."""
        with _errors(self.url, key):
            self._obstore.put(self._backend, key, data)

    def delete(self, key: str) -> None:
        """Delete an object, which need not be there. Raises StoreError."""
        with suppress(NotStored), _errors(self.url, key):
            self._obstore.delete(self._backend, key)


def folder_of(url: str) -> Path | None:
    """Return the folder that is used as a store; None for another kind of store.

    Raises:
        UsageError: the address is of no kind that there is.
    """
    if "://" not in url:
        return Path(url).absolute()
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        kinds = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UsageError(f"{url!r} is not the address of a store", hint=f"{kinds} or a folder")
    if parts.scheme != "file":
        return None
    return Path(unquote(parts.path))


class _TakenError(CollectordError):
    """The key has an object."""


@contextmanager
def _errors(url: str, key: str) -> Iterator[None]:
    """Turn errors of obstore in a block into ours."""
    from obstore import exceptions  # noqa: PLC0415  # see `_obstore`

    try:
        yield
    except CollectordError:
        raise
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise _TakenError(f"{key} exists") from error
    except FileNotFoundError as error:
        raise NotStored(f"{url} has no {key or 'such bucket'}", key=key) from error
    except (
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
        PermissionError,
    ) as error:
        raise StoreRefused(f"{url} refuses {key or 'access'}: {_words(error)}", key=key) from error
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise StoreUnavailable(
            f"{url} does not answer as it should: {_words(error)}", key=key
        ) from error


def _words(error: BaseException) -> str:
    """Return the first line of what a library says."""
    text = visible(str(error).strip().split("\n", 1)[0])
    return text[:_TEXT_MAX] or type(error).__name__


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(str(meta["path"]), int(meta["size"]))


def _obstore() -> Any:  # noqa: ANN401  # the package
    try:
        import obstore  # noqa: PLC0415  # of the verbs of the fleet alone
        import obstore.store  # noqa: PLC0415
    except ImportError as error:
        raise CollectordError(
            "a store needs obstore, which is not installed", hint=install_command("fleet")
        ) from error
    return obstore
