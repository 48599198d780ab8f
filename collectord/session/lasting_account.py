# SPDX-License-Identifier: Apache-2.0
"""The account of rings that outlive a process, which goes on in the next one.

A process that is killed takes with it what it had taken out of the rings and not yet written. The
rings' notes have the number of samples that were taken; the manifests of its run, that of the
recovered segment included, have the number that is stored. The rest is lost, and the next process
counts it, together with what the kernel has counted as lost since the last manifest.

The trace in AUX areas has an account of its own, in bytes.

Likewise a flight recorder's rings: their notes have the number of events that were overwritten by
the last snapshot, of which the manifests may not tell yet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from collectord.errors import CodecError
from collectord.kernel.values.kept_rings import Prior
from collectord.model import RING_DROPPED, RING_PAUSED, Reason, Stage, loss_key, loss_name
from collectord.sink.earlier_run import last_records, run_totals, run_totals_in
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from pathlib import Path

    from collectord._native._core import Stream
    from collectord.sink.earlier_run import RunTotals
    from collectord.sink.manifest import Manifest
    from collectord.source.base import Lasting

_LOG: Final = structlog.get_logger()
_TAKEN: Final = (Stage.STAGING, Reason.DROPPED)
_PAUSED: Final = loss_name(RING_PAUSED)
NOT_HELD: Final = "the opener does not hold its rings: they end with this process"
# Runs whose ids fit into the page of the text.
_MORE_MAX: Final = 16
# Losses of what was taken out of a ring.
_BEHIND_RING: Final = (f"{Stage.STAGING}/", f"{Stage.SINK}/")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The text about a session's rings that the next process gets.

    Attributes:
        run: of the segments of the process that wrote it; "" once all that it took is sealed.
        more: likewise of processes since, which were killed before they settled its account.
        left: samples in rings that those gave up.
        taken: samples that were taken out of the rings before that process.
        stored: samples that it has stored, as of its last manifest.
        lost: what had not got into the rings, as of the last manifest, by the loss's name.
        gone: samples that the process took, and counted as lost in a manifest.
        untold: losses of earlier processes that are in no manifest yet.
        overwritten: events of these rings that manifests tell of as overwritten.
        before: by the loss's name, what manifests told of these rings before that process; less
            what it tells of for earlier ones.
        overwritten_before: likewise, of those overwritten.
        paused_ns: MONOTONIC time since when the rings are paused for a snapshot; 0: they are not.
        refused: events that they had refused by then.
    """

    run: str = ""
    more: tuple[str, ...] = ()
    left: int = 0
    taken: int = 0
    stored: int = 0
    lost: dict[str, int] = {}
    gone: int = 0
    untold: dict[str, int] = {}
    overwritten: int = 0
    before: dict[str, int] = {}
    overwritten_before: int = 0
    paused_ns: int = 0
    refused: int = 0

    def with_totals(self, told: RunTotals) -> Account:
        """Return the account with what manifests of its process tell, be it known or not."""
        if not told.lost:  # those of recovered segments know what is stored alone
            return msgspec.structs.replace(self, stored=max(self.stored, told.stored))
        lost = {name: n + self.before.get(name, 0) for name, n in told.lost.items()}
        behind = [n for name, n in lost.items() if name.startswith(_BEHIND_RING)]
        return msgspec.structs.replace(
            self,
            stored=max(self.stored, told.stored),
            lost={
                name: max(n, self.lost.get(name, 0))
                for name, n in lost.items()
                if not name.startswith(_BEHIND_RING)
            },
            gone=max(self.gone, sum(behind)),
            untold={},
            overwritten=max(self.overwritten, self.overwritten_before + told.overwritten),
        )


class LastingAccount:
    """The account of one session. It is opened before anything is drained.

    What a killed process took and did not store is known once its segments are sealed: `settle`.
    Until then the process that opens it goes on with the killed one's account, as its next run.

    Args:
        source: has the rings.
        directory: the session's folder.
        run: of the segments of this process.

    Attributes:
        drains_first: the rings are an earlier process's, and may be drained before `settle`.
        overwritten: events that earlier processes knew as overwritten, and that no manifest has;
            known once it is settled.
        paused_ns: MONOTONIC time since when the rings had stood still, as the process before was
            killed during a snapshot; 0: nothing was refused meanwhile.

    Raises:
        KernelError: the account cannot be noted.
    """

    def __init__(self, source: Lasting, directory: Path, run: str) -> None:
        self._source = source
        self._directory = directory
        self._run = run
        prior = source.prior
        self._known = prior if source.resumed else Prior()
        self.overwritten = 0
        self._lost: dict[str, int] = {}
        self._before = self._account = before = _decode(prior.state)
        self._settled = not before.run
        refused = prior.lost.get(_PAUSED, 0)
        self.paused_ns = before.paused_ns if refused > before.refused else 0
        self.drains_first = source.resumed and len(before.more) < _MORE_MAX
        if not before.run:
            self._go_on(before, 0)
        elif self.drains_first:
            self._account = msgspec.structs.replace(
                before, more=(*before.more, run), left=before.left + prior.left
            )
            self._write()

    def settle(self) -> None:
        """Count what earlier processes lost, for a worker: their segments are sealed.

        Raises:
            SinkError: the manifests cannot be read.
            KernelError: the account cannot be noted.
        """
        before = self._before
        if before.run:
            # A kill may have come between a manifest and the note of it.
            before = before.with_totals(self._told_in(before.run))
            stored = before.stored + sum(self._told_in(run).stored for run in before.more)
            taken = self._source.prior.taken - before.taken - before.gone
            self._go_on(before, max(0, taken - stored))
            self._settled = True
        self._source.count_lost({loss_key(name): n for name, n in self._account.untold.items()})
        if any(self._lost.values()):
            event = "trace_of_killed_lost" if self._source.in_bytes else "events_of_killed_lost"
            _LOG.warning(event, path=str(self._directory), **self._lost)

    def _told_in(self, run: str) -> RunTotals:
        return run_totals_in(self._directory, run, in_bytes=self._source.in_bytes)

    def _go_on(self, before: Account, dropped: int) -> None:
        """Begin this process's account.

        Args:
            before: the one of the processes before.
            dropped: samples that they took, and neither stored nor counted as lost.
        """
        prior, known = self._source.prior, self._known
        self.overwritten = max(0, prior.overwritten - before.overwritten)
        lost = {name: max(0, n - before.lost.get(name, 0)) for name, n in prior.lost.items()}
        left = loss_name(RING_DROPPED)
        lost |= {loss_name(_TAKEN): dropped, left: lost.get(left, 0) + before.left + prior.left}
        self._lost = lost
        untold = Counter(lost)
        untold.update(before.untold)
        told = known.overwritten - self.overwritten
        self._account = Account(
            run=self._run,
            taken=known.taken,
            lost=known.lost,
            untold=dict(untold),
            overwritten=told,
            before={name: known.lost.get(name, 0) - n for name, n in untold.items()},
            overwritten_before=told,
        )
        self._write()

    def load_names(self, stream: Stream, left_ns: int) -> None:
        """Load the names and mappings that the last segment ends with, for a worker.

        They are those of the oldest unread records: of tasks too that have ended since, be it in
        that segment, as the sideband is read ahead of the data.

        Args:
            stream: takes them.
            left_ns: its `left_ns` before the rings were drained.

        Raises:
            SinkError: the folder cannot be read.
        """
        if not self._source.resumed or not self._source.names:
            return
        damage: Exception | None = None
        try:
            with last_records(self._directory) as records:
                try:
                    stream.load_sideband(records, left_ns)
                except OSError as error:  # a part is no record
                    damage = error
        except CodecError as error:
            damage = error
        if damage is not None:
            _LOG.warning("names_not_loaded", path=str(self._directory), error=str(damage))

    def told(self, manifest: Manifest) -> None:
        """Note what a manifest tells; of an account that is not settled the next process knows."""
        if not self._settled:
            return
        told = run_totals([manifest], in_bytes=self._source.in_bytes)
        self._account = self._account.with_totals(told)
        self._write()

    def pausing(self, since_ns: int, refused: int) -> None:
        """Note that the rings are about to stand still.

        Args:
            since_ns: MONOTONIC time.
            refused: events that they have refused by now, since this process has them.
        """
        refused += self._known.lost.get(_PAUSED, 0)
        self._account = msgspec.structs.replace(self._account, paused_ns=since_ns, refused=refused)
        self._write()

    def going_on(self) -> None:
        """Note that the rings record again."""
        self._account = msgspec.structs.replace(self._account, paused_ns=0, refused=0)
        self._write()

    def end(self) -> None:
        """Note that all that was taken out of the rings is in sealed segments, once settled."""
        if not self._settled:
            return
        self._account = msgspec.structs.replace(self._account, run="")
        self._write()

    def _write(self) -> None:
        self._source.note(encode_json(self._account).decode())


def _decode(state: str) -> Account:
    try:
        return decode_json(state.encode(), Account) if state else Account()
    except msgspec.DecodeError:
        return Account()
