# SPDX-License-Identifier: Apache-2.0
"""The commit of a segment in a store: what was put of it, and its part of the ledger.

It is put last, and never changed: a segment without one is not shipped, whatever else of it is
there. Each names the one before it of its stream by the hash of its bytes, so commits that
somebody removed or changed are found from the store alone. Anybody may have written what is read
here: sizes are limited, and numbers have ranges.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec

from collectord import __version__
from collectord.errors import StoreError
from collectord.sink.manifest import Count, Manifest, TimeNs
from collectord.sink.manifest import decode as decode_manifest
from collectord.sink.manifest_ledger import Difference  # noqa: TC001 - msgspec reads annotations
from collectord.sink.ship_note import Word  # noqa: TC001 - msgspec reads annotations
from collectord.text.foreign import decode_json, encode_json

SCHEMA: Final = 1
# A manifest has 16 MiB at most, and a set has one for each CPU.
COMMIT_MAX_BYTES: Final = 64 << 20
OBJECTS_MAX: Final = 10_000
LABELS_MAX: Final = 64

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Day = Annotated[str, msgspec.Meta(pattern=r"\A\d{4}-\d{2}-\d{2}\Z")]
Rule = Literal["ledger", "columns", "raw"]


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a segment.

    Attributes:
        event: the table whose rows it has, "" for a file of the segment.
        rows: 0 for a file of the segment.
    """

    key: Key
    bytes: Count
    sha256: Sha256
    event: Word = ""
    rows: Count = 0


class Previous(msgspec.Struct, frozen=True, kw_only=True):
    """The commit before one of the same stream: its key, its source, the hash of its bytes."""

    key: Key
    source: Sha256
    sha256: Sha256


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a segment in the ledger of its run, as the table `ledger` of a query has it.

    Attributes:
        since_ns, until_ns: UTC, the time of the balance; None if nothing tells it.
        basis: exact, lost_only or none.
        unit: records, or bytes of a channel whose records cannot be counted.
        lost_by: by STAGE/REASON; None if nothing tells it, as for the other figures.
    """

    since_ns: TimeNs | None = None
    until_ns: TimeNs | None = None
    basis: Word = "none"
    unit: Literal["records", "bytes"] = "records"
    produced: Difference | None = None
    stored: Count = 0
    lost: Difference | None = None
    lost_by: Annotated[dict[Word, Difference], msgspec.Meta(max_length=64)] | None = None
    overwritten: Difference | None = None
    in_flight: Difference | None = None
    unaccounted: Difference | None = None
    repeated: Difference | None = None


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the session recorded, or did not, as the table `coverage` of a query has it.

    Attributes:
        what: recorded; gap before a run; paused.
        until_ns: None while it lasts.
        cpus: that had a ring; none if rings are of threads.
    """

    what: Literal["recorded", "gap", "paused"]
    cause: Word = ""
    since_ns: TimeNs | None = None
    until_ns: TimeNs | None = None
    cpus: Annotated[tuple[int, ...], msgspec.Meta(max_length=65536)] = ()


class ClockState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the host's wall clock by its kernel, as the segment was shipped.

    Attributes:
        at_ns: UTC by that clock.
        synchronized: a time service disciplines it (no STA_UNSYNC); None if nothing tells it.
        max_error_us: the most by which it may be wrong, as the kernel has it.
        est_error_us: by which it is probably wrong.
    """

    at_ns: TimeNs
    synchronized: bool | None = None
    max_error_us: Count | None = None
    est_error_us: Count | None = None


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a segment.

    Attributes:
        source: the hash by which its objects are named; see `store_keys`.
        host, boot_id, kernel, session, kind, format: as the manifest has them; `kind` is that of
            the source. A set of files has its format without the number.
        labels: of the host, from its host file; `kernel` is there as a label too.
        date: of the keys.
        segment: name of its first file.
        started_ns: UTC as it was created.
        first_ns, last_ns: UTC of the first and the last record, None without one.
        clock: of the kernel's wall clock.
        rule: what the configuration ships of the session.
        redacted: something was left out or replaced, of the manifests too.
        config_sha256: of the session's plan, as in the manifest.
        balance, covered: its part of the ledger, and the times.
        previous: None for the first one that was shipped of its stream {host, session, format},
            or where nothing tells which it was.
        passed_over: segments of the stream between the previous one and this one that were not
            shipped, as the host's rules or limits have it; see the manifests for which.
        problem: why its rows are not there, "" if they are, or are not shipped.
        manifests: the text of each file's manifest as it was sealed. Unless it is redacted, its
            SHA-256 is the source; of a set, the source is the SHA-256 of those, one a line.
        objects: all that was put, this commit excepted.
        shipped_ns: UTC.
    """

    schema: int = SCHEMA
    writer: Word = f"collectord {__version__}"
    source: Sha256
    host: Word
    session: Word
    kind: Word
    format: Word
    boot_id: Word
    kernel: Word
    labels: Annotated[dict[Word, Word], msgspec.Meta(max_length=LABELS_MAX)] = {}
    date: Day
    segment: Word
    started_ns: TimeNs
    first_ns: TimeNs | None = None
    last_ns: TimeNs | None = None
    clock: ClockState | None = None
    rule: Rule
    redacted: bool = False
    config_sha256: Word = ""
    balance: Balance = Balance()
    covered: Annotated[tuple[Covered, ...], msgspec.Meta(max_length=10_000)] = ()
    previous: Previous | None = None
    passed_over: Count = 0
    problem: Text = ""
    manifests: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=8192)]
    objects: Annotated[tuple[StoredObject, ...], msgspec.Meta(max_length=OBJECTS_MAX)] = ()
    shipped_ns: TimeNs

    @property
    def stream(self) -> tuple[str, str, str]:
        """The host, session and format, whose commits follow each other."""
        return self.host, self.session, self.format

    @property
    def span(self) -> tuple[int | None, int | None]:
        """The beginning and the end of its time, UTC; None for one that is unknown."""
        balance = self.balance
        begins = balance.since_ns if balance.since_ns is not None else self.first_ns
        ends = balance.until_ns if balance.until_ns is not None else self.last_ns
        return begins, ends

    def decoded(self) -> list[Manifest]:
        """Return the manifests that this version can read."""
        found = (decode_manifest(text.encode(), Manifest) for text in self.manifests)
        return [manifest for manifest in found if manifest is not None]


def encode(commit: Commit) -> bytes:
    """Return a commit as JSON."""
    return encode_json(commit) + b"\n"


def decode(data: bytes, key: str) -> Commit:
    """Read the commit that has a key. Raises StoreError for anything else."""
    if len(data) > COMMIT_MAX_BYTES:
        raise StoreError(f"{key} has more than {COMMIT_MAX_BYTES} bytes", key=key)
    try:
        commit = decode_json(data, Commit)
    except msgspec.DecodeError as error:
        raise StoreError(f"{key} is not a commit: {error}", key=key) from error
    if commit.schema != SCHEMA:
        raise StoreError(
            f"{key} has schema {commit.schema}, and this version knows {SCHEMA}", key=key
        )
    return commit


def digest(data: bytes) -> str:
    """Return the hash by which the next commit names this one."""
    return hashlib.sha256(data).hexdigest()


def sources_told(commit: Commit) -> list[str]:
    """Return the SHA-256 of each manifest in a commit; those of a redacted one tell nothing."""
    return [hashlib.sha256(text.encode()).hexdigest() for text in commit.manifests]
