# SPDX-License-Identifier: Apache-2.0
"""A session's present loss: the stage, the reason, and the rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectord.model import loss_name
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.model import LossKey


@dataclass(frozen=True, slots=True)
class LossReading:
    """Sums over a session's rings, including sideband, that only rise.

    Attributes:
        lost: lost records, by stage and reason.
        starved: times that a ring was left alone because no staging chunk was free.
        records: records read, of any type.
        bytes: bytes of these records.
        unit: of `lost` and `records`; "bytes" for a channel whose records cannot be counted.
    """

    lost: Mapping[LossKey, int]
    starved: int = 0
    records: int = 0
    bytes: int = 0
    unit: str = "records"


@dataclass(frozen=True, slots=True)
class PresentLoss:
    """A loss of records that is going on.

    Attributes:
        unit: of the figures, see `LossReading`.
        cause: the cause that can be acted on, in words.
        per_second: over the last interval.
        lost: since it began.
        began_ns: CLOCK_MONOTONIC of the reading before the first that had losses.
    """

    key: LossKey
    unit: str
    began_ns: int
    cause: str = ""
    per_second: int = 0
    lost: int = 0

    def describe(self) -> str:
        """Return the loss in words, as a reason of a degraded session."""
        return f"losing {self.per_second:,} {self.unit}/s at {loss_name(self.key)}: {self.cause}"

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `losing` in `/v1/status`."""
        stage, reason = self.key
        return {"stage": stage, "reason": reason, **plain(self, "key", "began_ns")}
