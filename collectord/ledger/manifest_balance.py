# SPDX-License-Identifier: Apache-2.0
"""The balance of a session as in manifests, and its encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord.ledger.aux_ledger import aux_cut
from collectord.model import Basis, loss_name, sum_known
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.ledger.record_ledger import Bracket, SessionBalance
    from collectord.model import LossKey, RingLabel

# The keys that a manifest's ledger has only if there is something to say.
_IF_KNOWN: Final = ("aux", "pauses", "uncovered", "since_ns", "until_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestBalance:
    """The balance of one session between two moments.

    Attributes:
        closed: nothing was produced while either moment's counters were read: only then is
            equality claimed.
        produced: None unless the basis is `exact`, as are the two below.
        produced_before, produced_after: both ends of the bracket around the closing moment.
        lost: by `<stage>/<reason>`.
        overwritten: None if not counted.
        suppressed: times in which a foreign BPF program may have hidden events.
        pauses: times in which the events were disabled; left out if there is none.
        uncovered: times in which the session lacked what it should have on a CPU, likewise.
        aux: the areas, in bytes; left out if there is none.
        since_ns, until_ns: both moments, on CLOCK_MONOTONIC; None if unknown.
    """

    basis: Basis
    closed: bool
    produced: int | None
    produced_before: int | None
    produced_after: int | None
    stored: int
    lost: Mapping[str, int]
    overwritten: int | None
    repeated: int = 0
    in_flight: int = 0
    unaccounted: int | None
    suppressed: Sequence[Mapping[str, Any]] = ()
    pauses: Sequence[Mapping[str, Any]] = ()
    uncovered: Sequence[Mapping[str, Any]] = ()
    aux: Sequence[Mapping[str, Any]] = ()
    since_ns: int | None = None
    until_ns: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the ledger of a manifest."""
        absent = [key for key in _IF_KNOWN if getattr(self, key) in (None, (), [])]
        return plain(self, *absent)


def manifest_balance(
    balance: SessionBalance,
    brackets: Mapping[RingLabel, Bracket],
    shared: tuple[int, int] = (0, 0),
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    uncovered: Sequence[Mapping[str, Any]] = (),
) -> ManifestBalance:
    """Return the balance of a running session, with both ends of its brackets.

    `shared` are the events produced outside the brackets, at both ends: losses that belong to no
    single ring, and the contents of rings that nobody drains.
    """
    data = [b for label, b in brackets.items() if label.has_data]
    before = sum_known(b.before.value for b in data)
    after = sum_known(b.after.value for b in data)
    exact = balance.basis is Basis.EXACT
    return ManifestBalance(
        basis=balance.basis,
        closed=all(b.closed for b in data),
        produced=balance.produced,
        produced_before=before + shared[0] if exact and before is not None else None,
        produced_after=after + shared[1] if exact and after is not None else None,
        stored=balance.stored,
        lost=balance.lost,
        overwritten=balance.overwritten,
        repeated=balance.repeated,
        in_flight=balance.in_flight,
        unaccounted=balance.unaccounted,
        suppressed=balance.suppressed,
        pauses=balance.pauses,
        uncovered=uncovered,
        aux=aux_cut(balance.aux),
        since_ns=since_ns,
        until_ns=until_ns,
    )


def final_balance(
    *,
    produced: int | None,
    stored: int,
    lost: Mapping[LossKey, int],
    overwritten: int,
) -> ManifestBalance:
    """Return the final balance of a session that is over, from counters that no longer change.

    `produced` is None if the counters show only losses.
    """
    total = stored + sum(lost.values()) + overwritten
    return ManifestBalance(
        basis=Basis.LOST_ONLY if produced is None else Basis.EXACT,
        closed=True,
        produced=produced,
        produced_before=produced,
        produced_after=produced,
        stored=stored,
        lost={loss_name(key): count for key, count in lost.items()},
        overwritten=overwritten,
        unaccounted=None if produced is None else produced - total,
    )
