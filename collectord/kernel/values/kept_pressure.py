# SPDX-License-Identifier: Apache-2.0
"""The messages by which the opener has the kernel watch a limit of pressure for a daemon."""

from __future__ import annotations

import msgspec

from collectord.config.pressure_limit import PressureLimit


class AskPressure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pressure"):
    """The request of a descriptor that reports when a limit is passed.

    Attributes:
        limit: one of a trigger in the configuration, as `PressureLimit` spells it.
    """

    limit: str

    @property
    def parsed(self) -> PressureLimit:
        """The limit. Raises UsageError if it is none."""
        return PressureLimit.parse(self.limit)


class PressureAnswer(msgspec.Struct, frozen=True):
    """The answer to `AskPressure`, with the descriptor.

    Attributes:
        refused: the reason, "" with a descriptor.
    """

    refused: str = ""
