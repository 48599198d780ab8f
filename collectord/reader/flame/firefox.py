# SPDX-License-Identifier: Apache-2.0
"""Stacks as the Firefox Profiler reads them: its processed format of version 49.

Later versions of the profiler bring that version up to date when they load it. The outermost frame
is a thread of its own there. Stacks are counted here and have no times: one follows the other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from collectord import __version__
from collectord.reader.flame.numbering import Numbering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.reader.flame.picture import Picture
    from collectord.reader.symbols.frame import Frame

_VERSION: Final = 49
_GECKO_VERSION: Final = 24
_OTHER: Final = "Other"
# Units of time in ms, in which the format has times.
_UNITS_MS: Final = {"ns": 1e-6, "us": 1e-3, "ms": 1.0}
_CATEGORIES: Final = (("User", "yellow"), ("Kernel", "orange"), (_OTHER, "grey"))
_NAMELESS: Final = 2


def encode(picture: Picture) -> Iterator[str]:
    """Yield the file, piece by piece."""
    threads: dict[Frame, _Thread] = {}
    for stack, count in picture.sorted():
        if stack:
            thread = threads.setdefault(stack[0], _Thread(stack[0], len(threads), picture.unit))
            thread.add(stack[1:] or stack, count)
    document = {
        "meta": _meta(picture),
        "libs": [],
        "pages": [],
        "counters": [],
        "profilerOverhead": [],
        "threads": [thread.told() for thread in threads.values()],
    }
    yield json.dumps(document, separators=(",", ":"))


def _meta(picture: Picture) -> dict[str, Any]:
    return {
        "version": _GECKO_VERSION,
        "preprocessedProfileVersion": _VERSION,
        "product": picture.title,
        "importedFrom": f"collectord {__version__}",
        "interval": 1,
        "startTime": 0,
        "processType": 0,
        "stackwalk": 1,
        "debug": False,
        "symbolicated": True,
        "usesOnlyOneStackType": True,
        "doesNotUseFrameImplementation": True,
        "sourceCodeIsNotOnSearchfox": True,
        "markerSchema": [],
        "pausedRanges": [],
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
        "categories": [
            {"name": name, "color": colour, "subcategories": [_OTHER]}
            for name, colour in _CATEGORIES
        ],
    }


class _Thread:
    """The stacks above one outermost frame, in the tables of the format."""

    def __init__(self, outermost: Frame, number: int, unit: str) -> None:
        self._unit_ms = _UNITS_MS.get(unit)
        self._name = outermost.text
        self._number = number
        self._strings: Numbering[str] = Numbering()
        self._frames: Numbering[Frame] = Numbering()
        self._stacks: Numbering[tuple[int | None, int]] = Numbering()
        self._samples: list[tuple[int, float]] = []

    def add(self, stack: tuple[Frame, ...], count: int) -> None:
        """Add a stack."""
        at: int | None = None
        for frame in stack:
            number = self._frames.number(frame)
            at = self._stacks.number((at, number))
        if at is not None:
            weight = count if self._unit_ms is None else count * self._unit_ms
            self._samples.append((at, weight))

    def told(self) -> dict[str, Any]:
        """Return the thread as the format has it."""
        frames = [*self._frames]
        categories = [_category(frame) for frame in frames]
        resources: dict[str, int] = {}
        of_frames = [
            resources.setdefault(frame.module, len(resources)) if frame.module else -1
            for frame in frames
        ]
        names = [self._strings.number(frame.name) for frame in frames]
        count = len(frames)
        stacks = [*self._stacks]
        total = len(self._samples)
        return {
            "processType": "default",
            "processName": self._name,
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": 0,
            "unregisterTime": None,
            "pausedRanges": [],
            "name": self._name,
            "isMainThread": True,
            "pid": str(self._number),
            "tid": self._number,
            "frameTable": {
                "length": count,
                "address": [-1] * count,
                "inlineDepth": [0] * count,
                "category": categories,
                "subcategory": [0] * count,
                "func": [*range(count)],
                "nativeSymbol": [None] * count,
                "innerWindowID": [None] * count,
                "implementation": [None] * count,
                "line": [None] * count,
                "column": [None] * count,
            },
            "funcTable": {
                "length": count,
                "name": names,
                "isJS": [False] * count,
                "relevantForJS": [False] * count,
                "resource": of_frames,
                "fileName": [None] * count,
                "lineNumber": [None] * count,
                "columnNumber": [None] * count,
            },
            "resourceTable": {
                "length": len(resources),
                "lib": [None] * len(resources),
                "name": [self._strings.number(name) for name in resources],
                "host": [None] * len(resources),
                "type": [1] * len(resources),  # a library
            },
            "stackTable": {
                "length": len(stacks),
                "prefix": [prefix for prefix, _ in stacks],
                "frame": [frame for _, frame in stacks],
                "category": [categories[frame] for _, frame in stacks],
                "subcategory": [0] * len(stacks),
            },
            "samples": {
                "length": total,
                "stack": [at for at, _ in self._samples],
                "time": [*range(total)],
                "weight": [weight for _, weight in self._samples],
                "weightType": "samples" if self._unit_ms is None else "tracing-ms",
            },
            "markers": {
                "length": 0,
                "category": [],
                "data": [],
                "startTime": [],
                "endTime": [],
                "name": [],
                "phase": [],
            },
            "nativeSymbols": {
                "length": 0,
                "address": [],
                "functionSize": [],
                "libIndex": [],
                "name": [],
            },
            "stringArray": [*self._strings],
        }


def _category(frame: Frame) -> int:
    return _NAMELESS if frame.name.startswith("[") else int(frame.is_kernel)
