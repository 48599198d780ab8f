# SPDX-License-Identifier: Apache-2.0
"""Deletes what only old versions of a table have: their documents, snapshots and manifests.

The newest version is kept, and as many before it as the table says. What an old one has goes
before its document does: after a kill the next run finds what is left by the documents.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.errors import NotStored
from collectord.fleet.iceberg.iceberg_manifests import manifests_in
from collectord.fleet.iceberg.table_document import DOCUMENT_MAX_BYTES, read_lists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.fleet.iceberg.store_io import StoreIO

# Deletions of one run; more wait for the next ones.
VERSIONS_AT_ONCE: Final = 500
# Names of objects of this program; an object by another name is never deleted, whatever a table
# says.
_OWN: Final = re.compile(r"(?:snap-\d+-[0-9a-f]{32}|[0-9a-f]{32}-m\d+)\.avro")


def delete_old(files: StoreIO, documents: Mapping[int, str], previous_versions: int) -> int:
    """Delete old versions of a table.

    A snapshot has manifests of the one before it, and new ones. So what an old version has, and no
    snapshot in the oldest document that is kept, is in none that is kept: newer ones have old
    manifests from that document's last. This also holds for a document that was put so late that
    its number was free again: it is of an old version, and has the manifests of that one.

    Args:
        files: of the store.
        documents: keys of the table's documents, by version; the newest one is in place.
        previous_versions: that are kept beside the newest, at least one.

    Returns:
        the number of objects that were deleted.

    Raises:
        StoreError: one cannot be read or deleted; the rest is for the next run.
    """
    first_kept = max(documents) - previous_versions
    old = sorted(version for version in documents if version < first_kept)[:VERSIONS_AT_ONCE]
    if not old:
        return 0
    oldest_kept = min(version for version in documents if version >= first_kept)
    try:
        deletion = _Deletion(files, documents[oldest_kept])
    except NotStored:
        return 0  # another run is further
    for version in old:
        deletion.delete(documents[version])
    return deletion.count


class _Deletion:
    """Deletes versions, the oldest first.

    Args:
        files: of the store.
        kept: key of the oldest document that is kept.

    Attributes:
        count: of objects that were deleted.
    """

    def __init__(self, files: StoreIO, kept: str) -> None:
        self._files = files
        self._folder = kept.rpartition("/")[0]
        lists = self._lists(kept)
        self._used = {*lists, *(one for address in lists for one in manifests_in(address, files))}
        self.count = 0

    def delete(self, document: str) -> None:
        """Delete a version: what only it has, and then its document."""
        try:
            lists = self._lists(document)
        except NotStored:
            return
        for address in lists:
            if address in self._used:
                continue
            try:
                manifests = manifests_in(address, self._files)
            except NotStored:
                manifests = []  # it was deleted by a run before, or with another version
            for one in (*manifests, address):
                if one not in self._used:
                    self._delete(one)
        self._files.store.delete(document)
        self.count += 1

    def _lists(self, document: str) -> list[str]:
        return read_lists(self._files.store.get(document, DOCUMENT_MAX_BYTES), document)

    def _delete(self, address: str) -> None:
        folder, _, name = self._files.key_of(address).rpartition("/")
        if folder == self._folder and _OWN.fullmatch(name) is not None:
            self._files.store.delete(f"{folder}/{name}")
            self.count += 1
        self._used.add(address)  # it is not asked again
