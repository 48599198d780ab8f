# SPDX-License-Identifier: Apache-2.0
"""The bound of the order of events of different hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from collectord.fleet.clock_bound import clock_bound
from collectord.fleet.engines import ENGINES
from collectord.fleet.engines.place import Place
from collectord.fleet.questions import Asking
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, SCHED, SECOND, Host, Shipped, switches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.fleet.commit import Commit


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Shipped]:
    """Put what a test says."""
    with Shipped(Store.open(str(tmp_path / "store"), make=True)) as made:
        yield made


def _put(shipped: Shipped, name: str, max_error_us: int | None) -> Commit:
    host = Host(name, max_error_us=max_error_us)
    return shipped.segment(host, {f"sched:{SCHED}": switches(1, 5)}, BEGIN_NS, SECOND)


def test_two_clocks_are_wrong_by_the_sum_of_their_errors(shipped: Shipped) -> None:
    """The two that are most wrong bound the whole line; a reading's own time counts too."""
    commits = [_put(shipped, name, error) for name, error in (("a", 500), ("b", 300), ("c", 10))]
    bound = clock_bound(commits)
    assert bound.error_ns == {"a": 500_200, "b": 300_200, "c": 10_200}
    assert bound.between_ns == 800_400
    (words,) = bound.words()
    assert "0.800 ms (the most wrong: a and b)" in words


def test_a_step_of_the_clock_within_a_segment_counts(shipped: Shipped) -> None:
    """Between two readings somebody set the clock: times are wrong by as much."""
    one = _put(shipped, "a", 500)

    def stepped(manifest: dict[str, Any]) -> dict[str, Any]:
        manifest["clocks"]["close"]["realtime_ns"] += 7_000_000
        return manifest

    text = msgspec.json.encode(stepped(msgspec.json.decode(one.manifests[0]))).decode()
    changed = msgspec.structs.replace(one, manifests=(text,))
    assert clock_bound([changed]).error_ns == {"a": 7_500_200}


def test_a_clock_that_no_service_keeps_has_no_bound(shipped: Shipped) -> None:
    """It is said of its host, whatever others have."""
    commits = [_put(shipped, "a", 500), _put(shipped, "b", None)]
    bound = clock_bound(commits)
    assert bound.unknown == ("b",)
    assert [*bound.words()] == [
        "the clock of b is not known to be kept by a time service: nothing bounds the error"
    ]


@pytest.mark.parametrize(
    ("sql", "is_ordered"),
    [
        ("SELECT host, time FROM sched_switch ORDER BY time", True),
        ("SELECT count(*) FROM sched_switch a JOIN sched_switch b ON a.time < b.time", True),
        ("SELECT lag(host) OVER (ORDER BY time) FROM sched_switch", True),
        ("SELECT host, count(*) FROM sched_switch GROUP BY 1 ORDER BY 2", False),
        ("SELECT host FROM ledger ORDER BY until", False),
    ],
)
def test_statements_that_order_by_time_are_known(
    shipped: Shipped, sql: str, *, is_ordered: bool
) -> None:
    """They, and no others, say the bound."""
    _put(shipped, "a", 500)
    selection = Selection(shipped.store, Wanted(Window()))
    asking = Asking(selection, Place(shipped.store), ENGINES["duckdb"])
    asking.of_statement(sql)
    assert asking.is_ordered == is_ordered
