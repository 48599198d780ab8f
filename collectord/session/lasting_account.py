# SPDX-License-Identifier: Apache-2.0
"""The account of rings that outlive a process, which goes on in the next one.

A process that is killed takes with it what it had taken out of the rings and not yet written. The
rings' notes have the number of samples that were taken; the manifests of its run, that of the
recovered segment included, have the number that is stored. The rest is lost, and the next process
counts it, together with what the kernel has counted as lost since the last manifest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from collectord.errors import CodecError
from collectord.model import Reason, Stage, loss_key, loss_name
from collectord.sink.run_so_far import last_records, stored_in_run
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from pathlib import Path

    from collectord._native._core import Stream
    from collectord.sink.manifest import Manifest
    from collectord.source.base import Lasting

_LOG: Final = structlog.get_logger()
_TAKEN: Final = (Stage.STAGING, Reason.DROPPED)
_LEFT: Final = (Stage.KERNEL_RING, Reason.DROPPED)
NOT_HELD: Final = "the opener does not hold its rings: they end with this process"
# So many fit into the text's page.
_MORE_MAX: Final = 16
# Losses of what was taken out of a ring.
_BEHIND_RING: Final = (f"{Stage.STAGING}/", f"{Stage.SINK}/")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The text about a session's rings that the next process gets.

    Attributes:
        run: of the segments of the process that wrote it; "" once all that it took is sealed.
        more: likewise of processes since, which were killed before they settled its account.
        taken: samples that were taken out of the rings before that process.
        stored: samples that it has stored, as of its last manifest.
        lost: what had not got into the rings, as of the last manifest, by the loss's name.
        gone: samples that the process took, and counted as lost in a manifest.
        untold: losses of earlier processes that are in no manifest yet.
    """

    run: str = ""
    more: tuple[str, ...] = ()
    taken: int = 0
    stored: int = 0
    lost: dict[str, int] = {}
    gone: int = 0
    untold: dict[str, int] = {}


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

    Raises:
        KernelError: the account cannot be noted.
    """

    def __init__(self, source: Lasting, directory: Path, run: str) -> None:
        self._source = source
        self._directory = directory
        prior = source.prior
        self._before = before = _decode(prior.state)
        lost = {name: max(0, n - before.lost.get(name, 0)) for name, n in prior.lost.items()}
        self._lost = lost | {loss_name(_TAKEN): 0, loss_name(_LEFT): prior.left}
        untold = Counter(self._lost)
        untold.update(before.untold)
        self._earlier = dict(untold)
        resumed = source.resumed
        self._lost_before = prior.lost if resumed else {}
        self._account = Account(
            run=run,
            taken=prior.taken if resumed else 0,
            lost=self._lost_before,
            untold=self._earlier,
        )
        self.drains_first = resumed and len(before.more) < _MORE_MAX
        if not before.run:
            self._write(self._account)
        elif self.drains_first:
            goes_on = msgspec.structs.replace(
                before, more=(*before.more, run), lost=self._lost_before, untold=self._earlier
            )
            self._write(goes_on)

    def settle(self) -> None:
        """Count what earlier processes lost, for a worker: their segments are sealed.

        Raises:
            SinkError: the manifests cannot be read.
            KernelError: the account cannot be noted.
        """
        before = self._before
        if before.run:
            stored = max(before.stored, stored_in_run(self._directory, before.run))
            stored += sum(stored_in_run(self._directory, run) for run in before.more)
            dropped = max(0, self._source.prior.taken - before.taken - before.gone - stored)
            self._lost[loss_name(_TAKEN)] = dropped
            self._earlier[loss_name(_TAKEN)] += dropped
            self._account = msgspec.structs.replace(self._account, untold=self._earlier)
            self._write(self._account)
        self._source.count_lost({loss_key(name): n for name, n in self._earlier.items()})
        if any(self._lost.values()):
            _LOG.warning("events_of_killed_lost", path=str(self._directory), **self._lost)

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
        if not self._source.resumed:
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
        """Note what a manifest tells."""
        lost = manifest.ledger["lost"]
        behind = sum(count for name, count in lost.items() if name.startswith(_BEHIND_RING))
        own = {name: n - self._earlier.get(name, 0) for name, n in lost.items()}
        self._account = msgspec.structs.replace(
            self._account,
            stored=manifest.stored_before + manifest.samples,
            lost={
                name: n + self._lost_before.get(name, 0)
                for name, n in own.items()
                if not name.startswith(_BEHIND_RING)
            },
            gone=behind - self._earlier.get(loss_name(_TAKEN), 0),
            untold={},
        )
        self._write(self._account)

    def end(self) -> None:
        """Note that all that was taken out of the rings is in sealed segments."""
        self._account = msgspec.structs.replace(self._account, run="")
        self._write(self._account)

    def _write(self, account: Account) -> None:
        self._source.note(encode_json(account).decode())


def _decode(state: str) -> Account:
    try:
        return decode_json(state.encode(), Account) if state else Account()
    except msgspec.DecodeError:
        return Account()
