# SPDX-License-Identifier: Apache-2.0
"""Sink stage: an alert, as Alertmanager tells of it and as an incident has it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An alert of a notification; the names of its keys in JSON are Alertmanager's.

    Attributes:
        fingerprint: of its labels: the alert has the same one whenever it fires.
        starts_at: when it began to fire; another time is another alert of the same fingerprint.
    """

    status: Literal["firing", "resolved"] = "firing"
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    starts_at: Annotated[str, msgspec.Meta(pattern=r"\A[0-9TZ:.+-]{1,40}\Z")]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.labels.get("alertname", "")
