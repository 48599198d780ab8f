# SPDX-License-Identifier: Apache-2.0
"""The text of a scrape, in Prometheus' format and in OpenMetrics'.

It is what prometheus_client writes, byte for byte, but the labels of a series are put together
once and kept: with the `cpu` label a large machine has tens of thousands of lines, and the event
loop does nothing else while they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.utils import floatToGoString

from collectord.metrics.families import Family

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Labels, Part

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_TYPE: Final = OPENMETRICS.partition(";")[0]
# Sessions and CPUs come and go; far more than any machine has at a time.
_KEPT_MAX: Final = 100_000
# From here on Go writes exponents.
_EXPONENT_FROM: Final = 1_000_000


def content_type(accept: str) -> str:
    """Return the content type to answer with: OpenMetrics if the client's `Accept` has it."""
    kinds = (one.partition(";")[0].strip() for one in accept.split(","))
    return OPENMETRICS if _OPENMETRICS_TYPE in kinds else TEXT


class Exposition:
    """Writes all families of a registry.

    Args:
        registry: is read once for each text.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._labels: dict[Labels, dict[Labels, str]] = {}  # their text, by names and values

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Return the whole text and its content type, for a client that accepts this."""
        kind = content_type(accept)
        return self.text(kind), kind

    def text(self, kind: str) -> bytes:
        """Return the whole text, in the format of this content type."""
        lines: list[str] = []
        for family in self._registry.collect():
            lines += _head(family, kind)
            if isinstance(family, Family):
                for part in family.parts:
                    self._add(lines, family.name + part.suffix, part)
            else:
                lines += (
                    f"{sample.name}{_label_text(sample.labels.items())} {_number(sample.value)}\n"
                    for sample in family.samples
                )
        if kind == OPENMETRICS:
            lines.append("# EOF\n")
        return "".join(lines).encode()

    def _add(self, lines: list[str], name: str, part: Part) -> None:
        known = self._labels.setdefault(part.names, {})
        if len(known) > _KEPT_MAX:
            known.clear()
        for labels, value in part.rows:
            text = known.get(labels)
            if text is None:
                text = known[labels] = _label_text(zip(part.names, labels, strict=True))
            lines.append(f"{name}{text} {_number(value)}\n")


def _head(family: Metric, kind: str) -> tuple[str, str]:
    """Return the lines that tell of a family; OpenMetrics has no suffix in a counter's name."""
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    name = family.name
    if kind == OPENMETRICS:
        text = text.replace('"', r"\"")
    elif family.type == "counter":
        name += "_total"
    return f"# HELP {name} {text}\n", f"# TYPE {name} {family.type}\n"


def _label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels in the order of their names, in braces; "" if there are none."""
    words = [f'{name}="{_escaped(value)}"' for name, value in sorted(labels)]
    return f"{{{','.join(words)}}}" if words else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """Return a number as Go writes it. Most are counts below a million, whose text is short."""
    if type(value) is int and 0 <= value < _EXPONENT_FROM:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # no annotations
