# SPDX-License-Identifier: Apache-2.0
"""Every key of `[[trigger]]` and its default: what makes an incident, and how often."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from collectord.config.decode import Spelt, optional
from collectord.config.pressure_limit import PressureLimit
from collectord.text.units import NS_PER_SECOND, Nanoseconds, Share

TriggerKind = Literal[
    "pressure", "loss", "ring-fill", "oom-kill", "freeze", "unit", "alert", "event"
]
# Values that a file spells as strings.
Pressure = Annotated[PressureLimit | None, Spelt(optional(PressureLimit.parse))]

# Questions of `collectord why`, behind this in the names of answers.
WHY: Final = "why-"
# The flame graph of the load before an incident, among the names of answers.
FLAME: Final = "flame"


class TriggerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[trigger]]`: a condition, and what is done once it is met."""

    name: str
    kind: TriggerKind
    pressure: Pressure = None
    session: str = ""
    lost: int = 1
    fill: Share = Share(percent=90.0)
    unit: str = ""
    labels: dict[str, str] = {}
    count: int = 1
    metric: str = ""
    delay: Nanoseconds = Nanoseconds(0)
    cooldown: Nanoseconds = Nanoseconds(600 * NS_PER_SECOND)
    per_day: int = 10
    answers: tuple[str, ...] | None = None
