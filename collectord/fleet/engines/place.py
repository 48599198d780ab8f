# SPDX-License-Identifier: Apache-2.0
"""The place of the objects, and of the engine that reads them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from collectord.errors import UsageError
from collectord.fleet.store import Store, folder_of

if TYPE_CHECKING:
    from pathlib import Path

# The first that is set counts.
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


class Place(NamedTuple):
    """The place of the objects, and of the engine.

    Attributes:
        store: of the objects.
        address: of the engine, "" for the one in this process.
    """

    store: Store
    address: str = ""

    @property
    def folder(self) -> Path | None:
        """The folder that is used as a store; None for another kind of store."""
        return folder_of(self.store.url)

    def http_url(self, key: str) -> str:
        """Return the address of an object of S3, or of a pattern of them, by HTTP.

        Raises:
            UsageError: the store is of another kind.
        """
        parts = urlsplit(self.store.url)
        if parts.scheme != "s3":
            raise UsageError(
                f"this engine does not read {parts.scheme}://", hint="ask with --engine duckdb"
            )
        # A %XX in a key is its own text, and no escape.
        path = "/".join(filter(None, (parts.path.strip("/"), key.replace("%", "%25"))))
        endpoint = _first(_ENDPOINTS)
        if endpoint:
            return f"{endpoint.rstrip('/')}/{parts.netloc}/{path}"
        region = _first(_REGIONS) or "us-east-1"
        return f"https://{parts.netloc}.s3.{region}.amazonaws.com/{path}"


def open_store(url: str) -> Store:
    """Open a store to be read, with the endpoint and the credentials of the environment.

    Raises as `Store.open`.
    """
    endpoint = _first(_ENDPOINTS)
    options = {"aws_endpoint": endpoint} if endpoint and url.startswith("s3:") else {}
    return Store.open(url, options)


def _first(names: tuple[str, ...]) -> str:
    return next(filter(None, map(os.environ.get, names)), "") or ""
