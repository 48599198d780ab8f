# SPDX-License-Identifier: Apache-2.0
"""Puts one segment into a store, exactly once: its objects first, and then its commit.

Each step may fail, or be cut off by a kill, and is made again. The keys are those of the segment's
contents, and no object replaces another: so what is there from an attempt before, or from another
shipper, is taken, once it was found to be the same.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from collectord.errors import (
    CodecError,
    NotStored,
    SinkError,
    StoreConflict,
    UsageError,
)
from collectord.fleet import commit as commits
from collectord.fleet.commit import (
    COMMIT_MAX_BYTES,
    Balance,
    ClockState,
    Commit,
    Covered,
    Previous,
    StoredObject,
)
from collectord.fleet.multi_day_notes import multi_day_key, note_content
from collectord.fleet.pending_segments import deleted_before
from collectord.fleet.segment_rows import rows_in, write_rows
from collectord.fleet.store_keys import CommitKey, EventKey, raw_key
from collectord.fleet.table_file import Place
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.reader.coverage_rows import COVERAGE_COLUMNS, coverage_rows
from collectord.reader.ledger_rows import LEDGER_COLUMNS, ledger_rows
from collectord.reader.manifests import segment_of
from collectord.sink.manifest import encode as encode_manifest
from collectord.sink.packing import packing_of
from collectord.sink.segment import sink_errors
from collectord.text.foreign import convert, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from collectord.fleet.pace import Pace
    from collectord.fleet.pending_segments import Sealed, Target
    from collectord.fleet.store import Keeps
    from collectord.fleet.table_file import TableFile
    from collectord.reader.symbols.symbol_cache import SymbolCache
    from collectord.sink.manifest import Manifest
    from collectord.sink.ship_note import StreamNote

T = TypeVar("T")

_PIECE_BYTES: Final = 1 << 20
_PROBLEM_MAX: Final = 1000
# The segment before one began at most so many days earlier, as a rule: segments have an age.
_DAYS_BACK: Final = 3


class Host(NamedTuple):
    """The host that ships.

    Attributes:
        name: of the host in keys; "" for the one in the manifests.
        labels: from its host file.
        clock: reads what the kernel says of its wall clock.
        cache: of symbols.
        temporary: folder for files on their way, "" for the system's.
    """

    name: str = ""
    labels: Mapping[str, str] = {}
    clock: Callable[[], ClockState | None] = lambda: None
    cache: SymbolCache | None = None
    temporary: str = ""


class Shipped(NamedTuple):
    """A segment that is in the store.

    Attributes:
        previous: what the next commit says of this one.
        taken: somebody else has put it, or an attempt before.
        rows: that were put.
        bytes: that were put.
    """

    previous: Previous
    taken: bool
    rows: int = 0
    bytes: int = 0


class _Sent(NamedTuple):
    """The objects that were put of a segment before its commit."""

    rule: commits.Rule
    objects: tuple[StoredObject, ...]
    problem: str
    passed_over: int


class Shipment:
    """Puts segments of a host into a store.

    Args:
        store: where they go.
        host: where they are from.
        pace: is kept after each piece of work.
    """

    def __init__(self, store: Keeps, host: Host, pace: Pace) -> None:
        self._store = store
        self._host = host
        self._pace = pace

    def ship(
        self, target: Target, segment: Sealed, done: StreamNote | None, *, with_rows: bool
    ) -> Shipped:
        """Put a segment into the store.

        Args:
            target: the rules of its session.
            segment: is sealed.
            done: what was done of its stream before.
            with_rows: its rows are put, if the rule has them.

        Raises:
            StoreError: the store fails; the attempt may be made again.
            SinkError: the segment cannot be read now.
        """
        # No room for files on their way, a permission, a file that is gone.
        with sink_errors("cannot ship the segment", segment.paths[0].data):
            return self._ship(target, segment, done, with_rows=with_rows)

    def _ship(
        self, target: Target, segment: Sealed, done: StreamNote | None, *, with_rows: bool
    ) -> Shipped:
        host = self._host.name or segment.manifest.host
        key = segment.key(host)
        found = self._found(key, segment.source)
        if found is not None:
            return Shipped(found, taken=True)
        rule = target.rule if with_rows else "ledger"
        objects: list[StoredObject] = []
        problem = ""
        with TemporaryDirectory(
            prefix="collectord-ship-", dir=self._host.temporary or None
        ) as place:
            if rule != "ledger":
                try:
                    objects += self._put_rows(target, segment, host, Path(place))
                except (CodecError, SinkError, UsageError) as error:
                    if isinstance(error, SinkError) and error.errno:
                        raise  # it is not the contents, but the disk or a permission
                    problem = visible(str(error))[:_PROBLEM_MAX]
            if rule == "raw":
                objects += self._put_files(segment, host)
        previous = self._previous(segment, host, done)
        passed_over = done.passed_since if done is not None else 0
        if previous is None or previous.source != segment.earlier:
            passed_over += deleted_before(segment, done)
        sent = _Sent(rule, tuple(objects), problem, passed_over)
        commit = self._noted(self._commit(target, segment, sent, previous))
        data = commits.encode(commit)
        is_new = self._store.put_new(key, data)
        self._pace.keep(len(data))
        found = self._found(key, segment.source)
        if found is None:
            raise NotStored(f"{key} is not there, although the store took it", key=key)
        rows = sum(one.rows for one in commit.objects)
        size_bytes = sum(one.bytes for one in commit.objects) + len(data)
        return Shipped(found, not is_new, rows, size_bytes)

    def _found(self, key: str, source: str) -> Previous | None:
        """Return what is said of a commit that is there; None if there is none."""
        try:
            data = self._store.get(key, COMMIT_MAX_BYTES)
        except NotStored:
            return None
        commit = commits.decode(data, key)
        if commit.source != source:
            raise StoreConflict(f"{key} is the commit of another segment", key=key)
        return Previous(key=key, source=source, sha256=commits.digest(data))

    def _put_rows(
        self, target: Target, segment: Sealed, host: str, folder: Path
    ) -> Iterator[StoredObject]:
        manifest = segment.manifest
        place = Place(
            path=segment.paths[0].data,
            folder=folder,
            session=manifest.session,
            boot_id=manifest.boot_id,
        )
        with ExitStack() as stack:
            for file in write_rows(
                place,
                target.redaction,
                stack,
                cache=self._host.cache,
                after_each=self._pace.keep,
            ):
                key = EventKey(file.table, segment.date, host, segment.source).key
                yield self._put_table(key, file)

    def _put_table(self, key: str, file: TableFile) -> StoredObject:
        """Put the rows of a table, or take those that are there."""
        size_bytes, sha256 = _digest(file.path)
        there = self._put(key, file.path, size_bytes)
        if there is not None and there != (size_bytes, sha256):
            # Another version has written them: as many rows are the same ones.
            other = file.path.with_suffix(".there")
            self._store.download(key, other)
            try:
                if rows_in(other) != file.rows:
                    raise StoreConflict(f"{key} has other rows than the segment", key=key)
            finally:
                other.unlink()
            size_bytes, sha256 = there
        return StoredObject(
            key=key, bytes=size_bytes, sha256=sha256, event=file.table[:256], rows=file.rows
        )

    def _put_files(self, segment: Sealed, host: str) -> Iterator[StoredObject]:
        """Put the files of a segment as they are."""
        for paths in segment.paths:
            with sink_errors("cannot read the segment", paths.data, reading=True):
                fd = open_file(paths.data)
            with opened(fd):
                file = Path(f"/proc/self/fd/{fd}")  # a compression may take the name meanwhile
                size_bytes, sha256 = _digest(file)
                key = raw_key(
                    host,
                    segment.manifest.session,
                    segment.source,
                    paths.data.name,
                    packed=packing_of(fd) is not None,
                )
                there = self._put(key, file, size_bytes)
            if there is not None and there != (size_bytes, sha256):
                raise StoreConflict(f"{key} has other bytes than the segment", key=key)
            yield StoredObject(key=key, bytes=size_bytes, sha256=sha256)

    def _noted(self, commit: Commit) -> Commit:
        """Put the note of a segment of other days than its keys tell, before its commit."""
        lasting = multi_day_key(commit)
        if lasting is None:
            return commit
        data = note_content(lasting)
        own = len(data), hashlib.sha256(data).hexdigest()
        there = self._put(lasting.key, data, len(data))
        if there is not None and there != own:
            raise StoreConflict(f"{lasting.key} names another segment", key=lasting.key)
        note = StoredObject(key=lasting.key, bytes=own[0], sha256=own[1])
        return msgspec.structs.replace(commit, objects=(*commit.objects, note))

    def _put(self, key: str, data: bytes | Path, size_bytes: int) -> tuple[int, str] | None:
        """Put an object, and see that it is there.

        Returns:
            None if it is there as it was put; {bytes, SHA-256} of what has the key otherwise.
        """
        is_new = self._store.put_new(key, data)
        self._pace.keep(size_bytes)
        info = self._store.head(key)
        if info is None:
            raise NotStored(f"{key} is not there, although the store took it", key=key)
        if is_new and info.bytes == size_bytes:
            return None
        return self._store.digest(key)

    def _commit(
        self, target: Target, segment: Sealed, sent: _Sent, previous: Previous | None
    ) -> Commit:
        manifest = segment.manifest
        redaction = target.redaction
        texts = segment.texts
        if redaction.rules:
            hidden = map(redaction.manifest, segment.manifests)
            texts = tuple(encode_manifest(one).decode() for one in hidden)
        balance, covered = _ledger(segment, self._manifests_before(segment, previous))
        times = segment.times or (None, None)
        return Commit(
            source=segment.source,
            host=self._host.name or manifest.host,
            session=manifest.session,
            kind=manifest.source,
            format=segment.form,
            boot_id=manifest.boot_id,
            kernel=manifest.kernel,
            labels={**self._host.labels, "kernel": manifest.kernel},
            date=segment.date,
            segment=segment.paths[0].name,
            started_ns=manifest.started_ns,
            first_ns=times[0],
            last_ns=times[1],
            clock=self._host.clock(),
            rule=sent.rule,
            redacted=bool(redaction.rules),
            config_sha256=manifest.plan_sha256,
            balance=balance,
            covered=covered,
            previous=previous,
            passed_over=sent.passed_over,
            problem=sent.problem,
            manifests=texts,
            objects=sent.objects,
            shipped_ns=time.time_ns(),
        )

    def _manifests_before(self, segment: Sealed, previous: Previous | None) -> list[Manifest]:
        """Return the manifests of the commit before, if retention has deleted them here."""
        link = segment.manifest.previous
        if link is None or previous is None or previous.source != segment.earlier:
            return []
        if (segment.paths[0].directory / link.manifest).exists():
            return []
        data = self._store.get(previous.key, COMMIT_MAX_BYTES)
        return commits.decode(data, previous.key).decoded()

    def _previous(self, segment: Sealed, host: str, done: StreamNote | None) -> Previous | None:
        """Return the commit before a segment's: the last one that was put of its stream.

        A repair may seal a segment after those that were recorded behind it, so manifests are
        chained in another order than commits.
        """
        noted = None
        if done is not None and done.source:
            noted = Previous(key=done.key, source=done.source, sha256=done.sha256)
            if done.sequence >= segment.earlier_number:
                return noted
        if not segment.earlier:
            return noted
        # The note is lost, or another shipper has put it. Its day is that of its first record.
        latest = date.fromisoformat(segment.date)
        for back in range(_DAYS_BACK):
            day = (latest - timedelta(days=back)).isoformat()
            key = CommitKey(day, host, segment.earlier).key
            found = self._found(key, segment.earlier)
            if found is not None:
                return found
        return noted


def _ledger(segment: Sealed, before: Sequence[Manifest]) -> tuple[Balance, tuple[Covered, ...]]:
    """Return the part of a segment in the ledger of its run, and the times that it covers.

    Args:
        segment: is told by its manifests, as retention may delete it now.
        before: the manifests of the one before it, if they are not in its folder any more.
    """
    folder = segment.paths[0].directory
    own = segment_of(folder, segment.manifests)
    found = [*([segment_of(folder, before)] if before else []), own]
    *_, last = (dict(zip(LEDGER_COLUMNS, row, strict=True)) for row in ledger_rows(found))
    times = (dict(zip(COVERAGE_COLUMNS, row, strict=True)) for row in coverage_rows([own]))
    return _balance(last), tuple(one for one in map(_covered, times) if one is not None)


def _balance(told: Mapping[str, object]) -> Balance:
    fields = {name: told[name] for name in Balance.__struct_fields__ if name in told}
    fields |= {"since_ns": told.get("since"), "until_ns": told.get("until")}
    return _converted(fields, Balance) or Balance()


def _covered(told: Mapping[str, object]) -> Covered | None:
    fields = {name: told[name] for name in ("what", "cause", "cpus")}
    fields |= {"since_ns": told["since"], "until_ns": told["until"]}
    return _converted(fields, Covered)


def _converted(fields: Mapping[str, object], kind: type[T]) -> T | None:
    """Return fields as a value of a type; None if a manifest has impossible ones."""
    try:
        return convert({name: one for name, one in fields.items() if one is not None}, kind)
    except msgspec.ValidationError:
        return None


def _digest(path: Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file."""
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            size_bytes += len(piece)
    return size_bytes, digest.hexdigest()
