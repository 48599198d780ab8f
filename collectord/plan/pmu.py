# SPDX-License-Identifier: Apache-2.0
"""Terms of a dynamic PMU, laid into the config words by the formats in its sysfs.

Documentation/ABI/testing/sysfs-bus-event_source-devices-format: "config:0-7,32-35" puts a value's
low eight bits at 0 and its next four at 32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import MissingFeature, UsageError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collectord.config.event_spec import PmuEvent
    from collectord.facts.kernel_facts import PmuFacts

_FORMAT: Final = re.compile(r"(config\d*):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)", re.ASCII)
_WORDS: Final = ("config", "config1", "config2")
_WORD_BITS: Final = 64
# Terms that perf gives every PMU.
_COMMON_TERMS: Final = (*_WORDS, "name", "period", "freq")


@dataclass(frozen=True, slots=True)
class PmuConfig:
    """Config words of an event, and the sampling that its terms ask for (0: none)."""

    config: int = 0
    config1: int = 0
    config2: int = 0
    period: int = 0
    frequency: int = 0
    name: str = ""


def scatter(value: int, bits: str) -> int:
    """Lay `value` into the bit ranges of a format, e.g. "0-7,32-35".

    Raises:
        ValueError: the value has more bits than the ranges.
    """
    word = 0
    taken = 0
    for item in bits.split(","):
        first, _, last = item.partition("-")
        low, high = int(first), int(last or first)
        width = high - low + 1
        word |= (value >> taken & (1 << width) - 1) << low
        taken += width
    if value >> taken:
        raise ValueError(f"{value:#x} does not fit {taken} bit{'s' if taken > 1 else ''}")
    return word


def lay_out(event: PmuEvent, facts: PmuFacts, text: str) -> PmuConfig:
    """Return the config words of `pmu/terms/`, its event aliases expanded.

    Raises:
        UsageError: an unknown term, or a value that is not a number or does not fit.
        MissingFeature: a term goes to a word that this program's files cannot hold.
    """
    terms: dict[str, str | None] = {}
    for name, value in event.terms:
        if value is None and name not in facts.formats and name in facts.events:
            # A parameter that an alias leaves open ("core=?") must come from the event itself.
            terms |= _alias_terms(facts.events[name])
        else:
            terms[name] = value
    words = dict.fromkeys(_WORDS, 0)
    extras = {"period": 0, "freq": 0}
    label = ""
    for name, value in terms.items():
        if name == "name":
            label = value or ""
        elif name in extras:
            extras[name] = _number(name, value, text)
        elif name in words:
            words[name] |= _number(name, value, text)
        else:
            word, bits = _place(name, event.pmu, facts, text)
            try:
                words[word] |= scatter(_number(name, value, text), bits)
            except ValueError as error:
                raise UsageError(f"{name} of {text!r}: {error}") from error
    if any(word >> _WORD_BITS for word in words.values()):
        raise UsageError(f"a config value of {text!r} is larger than 64 bits")
    return PmuConfig(
        words["config"],
        words["config1"],
        words["config2"],
        period=extras["period"],
        frequency=extras["freq"],
        name=label,
    )


def _alias_terms(text: str) -> dict[str, str | None]:
    terms: dict[str, str | None] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if name:
            terms[name] = value if equals else None
    return terms


def _number(name: str, value: str | None, text: str) -> int:
    if value is None:
        return 1
    if value == "?":
        raise UsageError(f"{text!r} does not set {name}", hint=f"add {name}=VALUE")
    try:
        number = int(value, 16 if value.lower().startswith("0x") else 10)
    except ValueError:
        number = -1
    if number < 0:
        raise UsageError(f"{name}={value} of {text!r} is not a number")
    return number


def _place(name: str, pmu: str, facts: PmuFacts, text: str) -> tuple[str, str]:
    """Return the word and the bit ranges of a term."""
    where = facts.formats.get(name)
    if where is None:
        known = sorted({*facts.formats, *facts.events, *_COMMON_TERMS})
        hint = did_you_mean(name, known) or f"it has {', '.join(known)}"
        raise UsageError(f"PMU {pmu} has no term {name!r} ({text!r})", hint=hint)
    match = _FORMAT.fullmatch(where.strip())
    if match is None or match[1] not in _WORDS:
        raise MissingFeature(
            f"term {name} of PMU {pmu} sets {where.strip()!r}, which a perf.data file for "
            "perf 6.1 cannot hold",
            feature=where.strip(),
        )
    return match[1], match[2]
