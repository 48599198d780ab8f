# SPDX-License-Identifier: Apache-2.0
"""The room that is reserved for the manifest of a segment before it is known what it will say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from collectord.sink.series import TEXT_BYTES
from collectord.sink.sums import SUM_TEXT_BYTES
from collectord.text.foreign import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.sink.manifest import EventLayout

# The balance, a ring's entry and its part of the file, an id with its losses. Unused room is given
# back.
_MANIFEST_BYTES: Final = 32 << 10
_RING_BYTES: Final = 512
_ID_BYTES: Final = 48
# Chunks of a ring or stream in a part of a segment of this size: small ones may come between.
_CHUNKS_MOST: Final = 4
_CHUNKS_OF_BYTES: Final = 1 << 20
# A segment without a limit has room for the chunks of its first part.
_CHUNKS_ROOM_BYTES: Final = 256 << 20


def room_bytes(
    events: Sequence[str],
    layouts: Mapping[str, EventLayout],
    *,
    rings: int,
    lost_ids: int,
    segment_bytes: int,
) -> int:
    """Return the bytes that a sealed manifest may take.

    Args:
        events: names of the events.
        layouts: of those that the format does not describe, by name.
        rings: the number of rings.
        lost_ids: the maximum number of events whose losses it may list.
        segment_bytes: the limit of the segment, 0 for none.
    """
    told = {"events": events, "layouts": dict(layouts)}
    of_events = len(msgspec.json.format(encode_json(told), indent=1))
    chunks = _CHUNKS_MOST * (segment_bytes or _CHUNKS_ROOM_BYTES) // _CHUNKS_OF_BYTES + rings
    return (
        _MANIFEST_BYTES
        + TEXT_BYTES
        + rings * _RING_BYTES
        + of_events
        + lost_ids * _ID_BYTES
        + chunks * SUM_TEXT_BYTES
    )
