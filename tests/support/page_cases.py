# SPDX-License-Identifier: Apache-2.0
"""Sub-buffers of ftrace with any events, for Hypothesis."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from tests.support.ftrace_pages import discarded, event, page, time_extend, time_stamp

SUBBUF_BYTES: Final = 4096
U64S: Final = st.integers(0, 2**64 - 1)
DELTAS: Final = st.integers(0, 2**27 - 1)
LOST: Final = st.one_of(st.none(), st.just(0), U64S)


EVENTS: Final = st.one_of(
    st.builds(event, st.binary(min_size=1, max_size=200), DELTAS, long=st.booleans()),
    st.builds(event, st.just(b""), DELTAS),
    st.builds(discarded, st.integers(0, 40).map(lambda n: 4 * n), DELTAS.map(lambda n: n or 1)),
)
SOUND: Final = st.one_of(
    EVENTS, st.builds(time_extend, st.integers(0, 2**59 - 1)), st.builds(time_stamp, U64S)
)


def build(parts: list[bytes], base: int, lost: int | None, *, extended: bool = False) -> bytes:
    """Return a page of as many of the parts as fit."""
    kept: list[bytes] = []
    for part in parts:
        if sum(map(len, kept)) + len(part) <= SUBBUF_BYTES - 24:
            kept.append(part)
    return page(base, *kept, size_bytes=SUBBUF_BYTES, lost=lost, sign_extended=extended)
