# SPDX-License-Identifier: Apache-2.0
"""The processes that a session follows, and those that it should have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Missed(StrEnum):
    """The reason why a process that matched is not observed.

    `gone`: it began to exit before its events counted. `limit`: as many as allowed were observed.
    `refused`: the kernel did not open its events. `unknown`: it had exited before its name, its
    executable or its unit could be read, so that it may have matched or not.
    """

    GONE = "gone"
    LIMIT = "limit"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FollowedProcesses:
    """The processes of one session.

    Attributes:
        open: processes with open events now.
        attached: processes that were attached so far, each with its children.
        missed: processes that were not, by `Missed`.
        rescans: how often all processes were looked at because the kernel's news were incomplete.
    """

    open: int
    attached: int
    missed: Mapping[str, int]
    rescans: int

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json` and `/v1/status`."""
        return {
            "open": self.open,
            "attached": self.attached,
            "missed": dict(self.missed),
            "rescans": self.rescans,
        }
