# SPDX-License-Identifier: Apache-2.0
"""Stacks as speedscope reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from collectord import __version__
from collectord.reader.flame.numbering import Numbering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.reader.flame.picture import Picture
    from collectord.reader.symbols.frame import Frame

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_UNITS: Final = {"us": "microseconds", "ns": "nanoseconds", "ms": "milliseconds"}


def encode(picture: Picture) -> Iterator[str]:
    """Yield the file, piece by piece."""
    frames: Numbering[Frame] = Numbering()
    stacks = picture.sorted()
    samples = [[frames.number(frame) for frame in stack] for stack, _ in stacks]
    document: dict[str, Any] = {
        "$schema": _SCHEMA,
        "exporter": f"collectord {__version__}",
        "name": picture.title,
        "activeProfileIndex": 0,
        "profiles": [
            {
                "type": "sampled",
                "name": picture.title,
                "unit": _UNITS.get(picture.unit, "none"),
                "startValue": 0,
                "endValue": picture.total,
                "samples": samples,
                "weights": [count for _, count in stacks],
            }
        ],
        "shared": {"frames": [_frame(one.text, one.module) for one in frames]},
    }
    yield json.dumps(document, separators=(",", ":"))


def _frame(name: str, module: str) -> dict[str, str]:
    return {"name": name, "file": module} if module else {"name": name}
