# SPDX-License-Identifier: Apache-2.0
"""Troubles are told while they last: a disk that does not answer, a window that is short."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from collectord.session.health import Health

SECOND_NS = 1_000_000_000
PLAN = SimpleNamespace(name="exec", degraded=(), sink=SimpleNamespace(directory="/var/trace"))


def health() -> Health:
    """Return the health of a session that lacks nothing."""
    return Health(cast("Any", PLAN), (), cast("Any", None))


def test_a_disk_that_hangs_is_told_while_it_does() -> None:
    """With how long it has by now; the log says that it began, and that it is over."""
    one = health()
    with capture_logs() as logs:
        for seconds, told in (
            (0, ()),
            (9, ()),
            (11, ("records have waited 11 s for the disk of /var/trace",)),
            (12, ("records have waited 12 s for the disk of /var/trace",)),
            (0, ()),
            (1, ()),
        ):
            one.look_at_disk(seconds * SECOND_NS)
            assert one.reasons == told
    assert [line["event"] for line in logs] == ["writes_wait", "writes_go_on"]


def test_trouble_that_has_a_name_is_told_alone() -> None:
    """For a full disk it is not reported in addition that records wait."""
    one = health()
    one.note("disk", "no space")
    one.look_at_disk(20 * SECOND_NS)
    assert one.reasons == ("no space",)


def test_a_short_window_is_told_and_asks_for_no_more_polls() -> None:
    """Every other trouble does: it may be over, or have consequences."""
    one = health()
    one.note("window", "it holds 5 s of 30 s")
    assert one.reasons
    assert one.is_well
    one.note("wait", "records wait")
    assert not one.is_well
