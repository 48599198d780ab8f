# SPDX-License-Identifier: Apache-2.0
"""Balances at flushes: few bytes, a bounded number, and nothing inexact is forgotten."""

from __future__ import annotations

import pytest

from collectord.errors import CodecError
from collectord.sink.series import (
    ROWS_MAX,
    TEXT_BYTES,
    Balance,
    Series,
    SeriesText,
    decode,
    encode,
)

SECOND = 10**9


def row(second: int, count: int = 0, *, exact: bool = True, lost: int = 0) -> Balance:
    """Return a balance of this second."""
    return Balance(
        second * SECOND, exact, count, count, 0, None, 0, {"sink/dropped": lost, "b": 0}
    )


def test_round_trip() -> None:
    """Rows come back as they were, without the losses that nobody has, unknowns included."""
    rows = [
        row(0),
        row(1, 5),
        row(2, 10**15, exact=False, lost=3),
        row(3, 7)._replace(produced=None),
    ]
    back = decode(encode(rows))
    assert back == [one._replace(lost={"sink/dropped": one.lost["sink/dropped"]}) for one in rows]


def test_few_bytes() -> None:
    """A quiet session's row takes some ten bytes."""
    series = Series()
    for second in range(400):
        series.add(row(second, second * 20))
    text = series.take(row(400, 8000))
    assert len(text.rows) < 401 * 16


def test_bounded() -> None:
    """A long segment has few rows, evenly spread, and none hides an inexact one."""
    series = Series()
    for second in range(10 * ROWS_MAX):
        if series.is_due(second * SECOND, quiet=False):
            # The basis is that of the time since the row before.
            exact = not series.last_ns < 3001 * SECOND <= second * SECOND
            series.add(row(second, second << 40, exact=exact, lost=second << 30))
    text = series.take(row(10 * ROWS_MAX, 10 * ROWS_MAX << 40))
    rows = decode(text)
    assert len(rows) <= ROWS_MAX + 1
    assert len(text.rows) <= TEXT_BYTES
    assert rows[0].at_ns == 0
    assert rows[-1].at_ns == 10 * ROWS_MAX * SECOND
    (inexact,) = [n for n, one in enumerate(rows) if not one.exact]
    assert rows[inexact - 1].at_ns < 3001 * SECOND <= rows[inexact].at_ns
    # The next segment begins where this one ends.
    again = series.take(row(10 * ROWS_MAX + 1, 5))
    assert [one.at_ns for one in decode(again)] == [rows[-1].at_ns, rows[-1].at_ns + SECOND]


def test_a_quiet_session_has_a_row_in_some_seconds() -> None:
    """A flush that is not quiet has one in any case."""
    series = Series()
    for second in range(10, 30):
        if series.is_due(second * SECOND, quiet=second != 17):
            series.add(row(second))
    rows = decode(series.take(row(30)))
    assert [one.at_ns // SECOND for one in rows] == [10, 15, 17, 22, 27, 30]


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (("us",), ""),
        (encode([row(0)]).columns, "AAAA"),
        (encode([row(0)]).columns, "?"),
        (encode([row(0)]).columns, "gICA"),
        (encode([row(0)]).columns, "////////////////////"),
    ],
)
def test_what_anybody_wrote(columns: tuple[str, ...], rows: str) -> None:
    """A text that is none is refused."""
    with pytest.raises(CodecError):
        decode(SeriesText(columns=columns, rows=rows))
