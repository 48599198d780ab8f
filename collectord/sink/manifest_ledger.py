# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the ledger in a manifest, as it is read: anybody may have written it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from collectord.model import Basis
from collectord.sink.manifest import COUNT_MAX, Count, TimeNs
from collectord.text.foreign import convert

if TYPE_CHECKING:
    from collectord.sink.manifest import Manifest

Difference = Annotated[int, msgspec.Meta(ge=-COUNT_MAX, le=COUNT_MAX)]


class PauseTold(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a session was paused, on CLOCK_MONOTONIC; it may last."""

    cause: str
    since_ns: TimeNs
    until_ns: TimeNs | None = None


class UncoveredTold(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a session lacked something on CPUs, on CLOCK_MONOTONIC; it may last."""

    lacks: str
    since_ns: TimeNs
    until_ns: TimeNs | None = None


class SuppressedTold(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a foreign BPF program may have hidden an event; it may last."""

    event: str = ""
    programs: tuple[int, ...] = ()
    since_ns: TimeNs
    until_ns: TimeNs | None = None


class BalanceTold(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a manifest, see `ledger.manifest_balance.ManifestBalance`.

    Attributes:
        lost: None if the manifest has no balance, as that of a segment which a repair has sealed.
    """

    basis: str = str(Basis.NONE)
    closed: bool = False
    produced: Count | None = None
    stored: Count = 0
    lost: dict[str, Count] | None = None
    overwritten: Count | None = None
    repeated: Count = 0
    in_flight: Difference = 0
    unaccounted: Difference | None = None
    pauses: tuple[PauseTold, ...] = ()
    uncovered: tuple[UncoveredTold, ...] = ()
    suppressed: tuple[SuppressedTold, ...] = ()
    since_ns: TimeNs | None = None
    until_ns: TimeNs | None = None


# The balance of a manifest that has none.
UNTOLD: Final = BalanceTold()
# At the beginning of a run.
ZERO: Final = BalanceTold(produced=0, lost={}, overwritten=0, unaccounted=0)


def balance_in(manifest: Manifest) -> BalanceTold | str:
    """Return the ledger of a manifest, or why it cannot be read."""
    try:
        return convert(manifest.ledger, BalanceTold)
    except msgspec.ValidationError as error:
        return f"the ledger in the manifest: {error}"
