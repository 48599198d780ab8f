# SPDX-License-Identifier: Apache-2.0
"""Colours of frames: by where they ran, or by how much more or less of them there was."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collectord.reader.symbols.frame import Frame

_KERNEL_HUE: Final = 28
_USER_HUE: Final = 48
_NAMELESS_HUE: Final = 200
_SPREAD: Final = 14
_MORE_HUE: Final = 5
_LESS_HUE: Final = 215
_SAME: Final = "hsl(0,0%,88%)"
_FAINT: Final = 92
_STRONG: Final = 55
# The share of the whole from which on a difference has the strongest colour.
_FULL: Final = 0.1
_LEAST: Final = 0.0005


def of_frame(frame: Frame) -> str:
    """Return the colour of a frame; frames of one name have one colour."""
    hue = _KERNEL_HUE if frame.is_kernel else _USER_HUE
    if frame.name.startswith("["):
        hue = _NAMELESS_HUE
    spread = zlib.crc32(frame.name.encode(errors="replace"))
    return f"hsl({hue + spread % _SPREAD - _SPREAD // 2},{70 + spread // 16 % 20}%,65%)"


def of_difference(now: float, before: float) -> str:
    """Return the colour of a frame with these shares of the whole: red for more, blue for less."""
    more = now - before
    if abs(more) < _LEAST:
        return _SAME
    light = _FAINT - (_FAINT - _STRONG) * min(abs(more) / _FULL, 1)
    return f"hsl({_MORE_HUE if more > 0 else _LESS_HUE},80%,{light:.0f}%)"
