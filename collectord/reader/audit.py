# SPDX-License-Identifier: Apache-2.0
"""Read stage: whether a window of time is provably complete, by manifests, lists and checksums.

A window is complete for a source of a session if all of it lies in balances, every event was
counted, none was lost, overwritten or is unaccounted, and each segment that may hold one of its
records is there as it was sealed. All else is a finding, with its time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.folders.walk import open_folder
from collectord.reader import verify
from collectord.reader.audit_findings import Finding, What, in_order, within, without
from collectord.reader.audit_runs import Figures, run_of
from collectord.reader.event_file import shown
from collectord.reader.gaps import EVER_NS
from collectord.reader.manifests import note_of, read_manifests
from collectord.sink import chain_log
from collectord.sink.manifest import Manifest, link
from collectord.sink.segment import read_other_manifest, sink_errors
from collectord.sink.stored_file import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.reader.audit_runs import Run
    from collectord.reader.manifests import File, Manifests, Segment
    from collectord.reader.verify import Verdict
    from collectord.sink.chain_log import ChainLog, Entry


class PlanUsed(NamedTuple):
    """A plan by which a session recorded, from when to when, and the filters of its events."""

    since_ns: int
    until_ns: int
    plan_sha256: str
    filters: dict[str, str]


class Covered(NamedTuple):
    """A time that balances cover."""

    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The answer for one source of a session.

    Attributes:
        since_ns, until_ns: the window, UTC.
        covered: the times in it that balances tell of.
        figures: of each run in it.
        newest: the newest manifest of the source, with its hash: who keeps it can tell later
            whether the chain was replaced as a whole. None if there is none.
        findings: the oldest first; none: the window is complete.
    """

    session: str
    source: str
    directory: str
    since_ns: int
    until_ns: int
    covered: tuple[Covered, ...]
    figures: tuple[Figures, ...]
    in_force: tuple[PlanUsed, ...]
    newest: dict[str, str] | None
    findings: tuple[Finding, ...]

    @property
    def is_complete(self) -> bool:
        """Whether it is proved that no event of the window is missing."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the form in JSON output."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {
            "complete": self.is_complete,
            "covered": [one._asdict() for one in self.covered],
            "in_force": [one._asdict() for one in self.in_force],
        }


def audit(
    targets: Sequence[Path],
    session: str | None,
    since_ns: int | None,
    until_ns: int | None,
) -> list[Audit]:
    """Audit the sources of sessions.

    Args:
        targets: state directories and session directories.
        session: of this one alone; None for all.
        since_ns: beginning of the window, UTC; None: that of the oldest segment.
        until_ns: its end; None: the last balance, now before the first one.

    Raises:
        SinkError: a directory cannot be read.
    """
    rows = verify.list_segments(targets)
    manifests = read_manifests(rows)
    folders = {row.path.parent for row in rows} | {*_session_folders(targets)}
    audits: list[Audit] = []
    for folder in sorted(folders):
        log = _read_log(folder)
        here = [one for one in manifests.segments if one.folder == folder]
        streams = {one.stream: one for one in here}
        keys = [key[1:] for key in streams]
        keys += [(e.session, e.source) for e in (log.entries.values() if log else ()) if e.source]
        for name, source in dict.fromkeys(keys):
            if session in (None, name):
                of_stream = [one for one in here if one.stream[1:] == (name, source)]
                stream = _Stream(folder, name, source, of_stream, log, manifests)
                audits.append(stream.audit(since_ns, until_ns))
    return audits


def _session_folders(targets: Iterable[Path]) -> Iterator[Path]:
    for target in targets:
        if target.is_dir():
            yield target
            yield from (one for one in target.iterdir() if (one / chain_log.NAME).is_file())


def _read_log(directory: Path) -> ChainLog | None:
    telling = sink_errors("cannot read the list of segments", directory, reading=True)
    with telling, open_folder(directory) as folder:
        return chain_log.read(folder)


@dataclass(frozen=True)  # with a place for what is found once
class _Stream:
    """The segments of one source of a session, and what the folder's list says."""

    folder: Path
    session: str
    source: str
    segments: Sequence[Segment]
    log: ChainLog | None
    manifests: Manifests

    def audit(self, since_ns: int | None, until_ns: int | None) -> Audit:
        by_run = groupby(self.segments, lambda one: one.manifest.run)
        runs = [run_of([*of_run]) for _, of_run in by_run]
        spans = [span for run in runs for span in run.spans]
        # Segments that somebody removed count as the beginning or the end of what there was, those
        # that were evicted do not.
        removed = [self._lasted(entry) for entry in self._gone if not entry.evicted]
        ends = [span.until_ns for span in spans] or [e.until_ns for e in self._entries]
        ends += [until for _, until in removed if until < EVER_NS]
        if not ends and self.segments:  # nothing is sealed yet
            ends = [time.time_ns()]
        begins = [span.since_ns for span in spans] + [since for since, _ in removed]
        begins += [_times(one)[0] for one in self.segments if one.balance.lost is None]
        begins = begins or [e.from_ns for e in self._entries]
        since = min(begins, default=0) if since_ns is None else since_ns
        until = max(ends, default=0) if until_ns is None else until_ns
        until = max(since, until)
        covered = [*within(((s.since_ns, s.until_ns) for s in spans), since, until)]
        figures = [one for one in (run.figures(since, until) for run in runs) if one is not None]
        findings = [
            *self._holes(covered, since, until),
            *self._in_balances(since, until),
            *self._of_figures(runs, figures, since, until),
            *self._of_files(since, until),
        ]
        return Audit(
            session=shown(self.session),
            source=shown(self.source),
            directory=shown(str(self.folder)),
            since_ns=since,
            until_ns=until,
            covered=tuple(Covered(*one) for one in covered),
            figures=tuple(figures),
            in_force=tuple(_in_force(spans, since, until)),
            newest=self._newest(),
            findings=in_order(findings),
        )

    @cached_property
    def _entries(self) -> list[Entry]:
        entries = self.log.entries.values() if self.log is not None else ()
        return [e for e in entries if (e.session, e.source) == (self.session, self.source)]

    @cached_property
    def _gone(self) -> list[Entry]:
        """The segments that were sealed here, and have no manifest any more that can be read."""
        there = {file.paths.name for one in self.segments for file in one.files}
        sealed = {f.paths.name for s in self.segments for f in s.files if _is_sealed(s)}
        return [
            entry
            for entry in self._entries
            if entry.segment not in (sealed if not entry.evicted else there)
        ]

    def _holes(
        self, covered: Sequence[tuple[int, int]], since: int, until: int
    ) -> Iterator[Finding]:
        """Yield why there is no balance for parts of the window."""
        left = [*without([(since, until)], covered)]
        for told in sorted(self._reasons(), key=lambda one: _ORDER.index(one.what)):
            begins, ends = told.since_ns or 0, EVER_NS if told.until_ns is None else told.until_ns
            for one, other in within(left, begins, ends):
                yield Finding(one, other, told.what, told.detail, told.file, told.events)
            left = [*without(left, [(begins, ends)])]
        known = [s.manifest.started_ns for s in self.segments]
        for one, other in left:
            before = bool(known) and other <= min(known)
            detail = "it is older than all that is known" if before else "nothing tells of it"
            yield Finding(one, other, What.UNTOLD, detail)

    def _reasons(self) -> Iterator[Finding]:
        """Yield the times without a balance whose cause is known, in the window or not."""
        for entry in self._gone:
            what = What.EVICTED if entry.evicted else What.MISSING
            before = ", before it was shipped" if entry.unshipped else ""
            detail = f"by retention: {shown(entry.evicted)}{before}" if entry.evicted else _REMOVED
            file = shown(str(self.folder / entry.segment))
            yield Finding(*self._lasted(entry), what, detail, file, entry.samples)
        gaps = [e.gap for e in self._entries] + [s.manifest.gap for s in self.segments]
        for gap in gaps:
            if gap is not None:
                yield Finding(gap.from_ns, gap.until_ns, What.DOWN, shown(gap.cause))
        older = self.log.older if self.log is not None else None
        if older is not None:
            detail = f"{older.older:,} older segments of the folder"
            yield Finding(0, older.until_ns, What.EVICTED, detail)
        yield from self._without_balances()

    def _without_balances(self) -> Iterator[Finding]:
        """Yield the segments that have no balance, yet or at all, and the time behind a stop."""
        note = note_of(self.folder, self.source)
        for segment, later in pairwise([*self.segments, None]):
            if segment is None or segment.balance.lost is not None:
                continue
            manifest = segment.manifest
            begins_ns = segment.began_ns
            if segment.is_running:
                detail = "its balance is known once it is sealed (collectord rotate)"
                yield Finding(begins_ns, None, What.RUNNING, detail, segment.labels[-1])
                continue
            ends = [begins_ns, *(file.row.ends_ns or 0 for file in segment.files)]
            if note is not None and note.boot_id == manifest.boot_id and not note.stopped:
                ends.append(note.until.realtime_ns)
            if later is not None:
                after = later.manifest.gap
                ends.append(after.from_ns if after is not None else _times(later)[0])
            detail = "its process was killed: nobody counted what happened"
            yield Finding(begins_ns, max(ends), What.KILLED, detail, segment.labels[-1])
        if note is not None and note.stopped:
            yield Finding(note.until.realtime_ns, None, What.DOWN, "stop")

    def _lasted(self, gone: Entry) -> tuple[int, int]:
        """Return from when to when a segment lasted: those of a run follow each other."""
        run = [entry for entry in self._entries if entry.run == gone.run]
        at = run.index(gone)
        begins = [gone.from_ns, *(one.until_ns for one in run[at - 1 : at] if one.until_ns)]
        ends = [gone.until_ns or EVER_NS, *(one.from_ns for one in run[at + 1 : at + 2])]
        return min(begins), max(ends)

    def _in_balances(self, since: int, until: int) -> Iterator[Finding]:
        """Yield what the ledgers tell of times in which not everything was recorded."""
        found: dict[tuple[str, int], Finding] = {}
        for segment in self.segments:
            balance = segment.balance
            end = segment.utc(balance.until_ns)
            told = [
                *((p.since_ns, p.until_ns, What.PAUSED, p.cause) for p in balance.pauses),
                *((u.since_ns, u.until_ns, What.UNCOVERED, u.lacks) for u in balance.uncovered),
                *(
                    (
                        s.since_ns,
                        s.until_ns,
                        What.SUPPRESSED,
                        f"{s.event} by {_programs(s.programs)}",
                    )
                    for s in balance.suppressed
                ),
            ]
            for begins, ends, what, detail in told:
                # A later manifest knows the end of one that lasted at the seal before.
                one = segment.utc(begins)
                other = end if ends is None else segment.utc(ends)
                found[f"{what} {detail}", begins] = Finding(one, other, what, shown(detail))
        for finding in found.values():
            begins, ends = finding.since_ns or 0, finding.until_ns or EVER_NS
            if begins < until and ends > since:
                yield finding

    def _of_figures(
        self, runs: Sequence[Run], figures: Sequence[Figures], since: int, until: int
    ) -> Iterator[Finding]:
        for run in runs:
            for name, reason in run.broken:
                yield Finding(None, None, What.CHANGED, reason, name)
        known = [*self._in_balances(0, EVER_NS)]
        explained = [(f.since_ns or 0, f.until_ns or EVER_NS) for f in known if f.what in _HIDING]
        for one in figures:
            yield from _of_balance(one, since, until)
            unexplained = [
                times
                for times in one.inexact
                if not any(begins < times[1] and ends > times[0] for begins, ends in explained)
            ]
            for begins, ends in within(unexplained, since, until):
                yield Finding(begins, ends, What.UNCOUNTED, _UNCOUNTED)

    def _of_files(self, since: int, until: int) -> Iterator[Finding]:
        """Yield what is wrong with the files that may hold records of the window."""
        yield from self._of_chain()
        for entry in self._gone:
            # Its records may be older than its balance: they waited for the one before it.
            begins, ends = entry.from_ns, entry.until_ns or EVER_NS
            if not entry.evicted and begins < until and ends > since:
                path = self.folder / entry.segment
                detail = (
                    "its manifest is missing, or cannot be read" if path.exists() else _REMOVED
                )
                name = shown(str(path))
                yield Finding(begins, ends, What.MISSING, detail, name, entry.samples)
        looked_at = [
            (file, times)
            for segment, times in ((one, _times(one)) for one in self.segments)
            if not segment.is_running and times[0] < until and times[1] > since
            for file in segment.files
        ]
        paths = [file.row.path for file, _ in looked_at]
        verdicts = verify.verify_files(self.folder, paths, self.log)
        for (file, times), verdict in zip(looked_at, verdicts, strict=True):
            yield from _of_file(file, times, verdict)

    def _of_chain(self) -> Iterator[Finding]:
        if self.log is None and any(
            f.paths.rotated for s in self.segments if _is_sealed(s) for f in s.files
        ):
            yield Finding(None, None, What.UNCHAINED, f"the folder has no {chain_log.NAME}")
        if self.log is not None and self.log.torn:
            detail = f"{self.log.torn:,} lines of {chain_log.NAME} cannot be read"
            yield Finding(None, None, What.UNCHAINED, detail)
        for path, reason in self.manifests.damage:
            if Path(path).parent == self.folder:
                yield Finding(None, None, What.CHANGED, reason, path)

    def _newest(self) -> dict[str, str] | None:
        sealed = [file for one in self.segments for file in one.files if _is_sealed(one)]
        if not sealed:
            return None
        path = sealed[-1].paths.manifest
        telling = sink_errors("cannot read the manifest", path, reading=True)
        with telling, open_folder(self.folder) as folder:
            made = link(path.name, read_other_manifest(folder, path))
        return {"manifest": made.manifest, "sha256": made.sha256}


_REMOVED: Final = "it was sealed, and somebody has removed it"
_UNCOUNTED: Final = "the ledger's basis was not exact"
# Reasons for a time without balances, the most telling first.
_ORDER: Final = [What.EVICTED, What.MISSING, What.KILLED, What.DOWN, What.RUNNING]
_HIDING: Final = frozenset({What.PAUSED, What.SUPPRESSED})
_OF_CHECK: Final = {Check.CHAIN: What.CHANGED, Check.MANIFEST: What.CHANGED}


def _of_balance(one: Figures, since: int, until: int) -> Iterator[Finding]:
    """Yield the events that are in no segment."""
    at = max(one.since_ns, since), min(one.until_ns, until)
    for name, count in one.lost.items():
        yield Finding(*at, What.LOST, shown(name), events=count)
    if one.overwritten:
        yield Finding(*at, What.OVERWRITTEN, "newer ones took their place", events=one.overwritten)
    if one.unaccounted:
        yield Finding(*at, What.UNACCOUNTED, "nothing explains it", events=one.unaccounted)
    elif one.unaccounted is None and not one.inexact:
        yield Finding(*at, What.UNCOUNTED, "nothing tells what is unaccounted")


def _of_file(file: File, times: tuple[int, int], verdict: Verdict) -> Iterator[Finding]:
    path = file.row.path
    name = shown(str(path))
    if verdict.finding is not None:
        check = verdict.finding.check
        what = _OF_CHECK.get(check, What.DAMAGED)
        if check is Check.FILE and not path.exists():
            what = What.MISSING
        yield Finding(*times, what, f"{check}: {verdict.finding.detail}", name)
    if isinstance(file.manifest, Manifest) and file.manifest.cut:
        size = sum(one.bytes for one in file.manifest.cut)
        detail = f"{size:,} damaged bytes were cut out of it"
        yield Finding(*times, What.DAMAGED, detail, name, file.manifest.cut_samples)


def _programs(ids: Sequence[int]) -> str:
    return f"BPF program {', '.join(map(str, ids))}" if ids else "a BPF program"


def _is_sealed(segment: Segment) -> bool:
    return isinstance(segment.manifest, Manifest)


def _times(segment: Segment) -> tuple[int, int]:
    """Return from when to when a segment may hold records, in UTC."""
    manifest = segment.manifest
    begins, ends = [segment.began_ns], [0]
    if isinstance(manifest, Manifest):
        since_ns, until_ns = chain_log.span_of(manifest)
        begins.append(since_ns)
        ends.append(until_ns)
    begins += [file.row.begins_ns for file in segment.files if file.row.begins_ns]
    ends += [file.row.ends_ns for file in segment.files if file.row.ends_ns]
    return min(begins), max(*ends, min(begins) + 1)


def _in_force(spans: Iterable[Any], since: int, until: int) -> Iterator[PlanUsed]:
    """Yield the plans of a window; of segments of one plan that follow each other one."""
    last: PlanUsed | None = None
    for span in spans:
        if span.since_ns >= until or span.until_ns <= since:
            continue
        manifest = span.segment.manifest
        filters = {shown(name): shown(text) for name, text in manifest.filters.items()}
        new = PlanUsed(span.since_ns, span.until_ns, shown(manifest.plan_sha256), filters)
        if last is not None and last[2:] == new[2:]:
            last = last._replace(until_ns=new.until_ns)
            continue
        if last is not None:
            yield last
        last = new
    if last is not None:
        yield last
