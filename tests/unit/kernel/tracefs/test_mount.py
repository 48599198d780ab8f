# SPDX-License-Identifier: Apache-2.0
"""tracefs below an injected root: its descriptions are read, its absence is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.codec.tracepoint import Tracepoint
from collectord.errors import MissingFeature, MissingPrivilege
from collectord.kernel.tracefs.mount import Tracefs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the parts of tracefs that are read."""
    event = tmp_path / "events/sched/sched_switch"
    event.mkdir(parents=True)
    (event / "id").write_text("314\n")
    (event / "format").write_text("name: sched_switch\n")
    own = tmp_path / "events/ftrace/print"
    own.mkdir(parents=True)
    (own / "format").write_text("name: print\n")
    (tmp_path / "events/ftrace/enable").write_text("0\n")
    (tmp_path / "events/header_page").write_text("page\n")
    (tmp_path / "events/header_event").write_text("event\n")
    (tmp_path / "available_events").write_text("sched:sched_switch\nftrace:print\n")
    return tmp_path


def test_reads_descriptions(tree: Path) -> None:
    """Ids, formats and headers come out as the kernel wrote them."""
    tracefs = Tracefs(tree)
    assert tracefs.mounted
    switch = Tracepoint("sched", "sched_switch")
    assert tracefs.available_events() == (switch, Tracepoint("ftrace", "print"))
    assert tracefs.event_id(switch) == 314
    assert tracefs.event_format(switch) == b"name: sched_switch\n"
    assert tracefs.ftrace_formats() == {"print": b"name: print\n"}
    assert (tracefs.header_page(), tracefs.header_event()) == (b"page\n", b"event\n")


def test_unknown_tracepoint_is_a_missing_feature(tree: Path) -> None:
    """A tracepoint that the kernel does not have is named."""
    with pytest.raises(MissingFeature, match="no tracepoint sched:nothing"):
        Tracefs(tree).event_id(Tracepoint("sched", "nothing"))


def test_debugfs_is_the_second_place(tmp_path: Path) -> None:
    """The tree is looked for below sysfs first, then below debugfs."""
    assert Tracefs.below(tmp_path).root == tmp_path / "kernel/tracing"
    (tmp_path / "kernel/debug/tracing/events").mkdir(parents=True)
    assert Tracefs.below(tmp_path).root == tmp_path / "kernel/debug/tracing"
    (tmp_path / "kernel/tracing/events").mkdir(parents=True)
    assert Tracefs.below(tmp_path).root == tmp_path / "kernel/tracing"


def test_absent_mount_point_is_a_missing_feature(tmp_path: Path) -> None:
    """Without the directory that the kernel makes for it there is no tracefs."""
    with pytest.raises(MissingFeature, match="CONFIG_FTRACE"):
        Tracefs.below(tmp_path).ensure_mounted()
    with Tracefs.below(tmp_path).seen() as seen:
        assert not seen.mounted


def test_check_mounted_tells_the_command(tmp_path: Path) -> None:
    """If it may not be mounted now, the message says how to mount it."""
    (tmp_path / "kernel/tracing").mkdir(parents=True)
    tracefs = Tracefs.below(tmp_path)
    with pytest.raises(MissingPrivilege, match="mount -t tracefs tracefs") as caught:
        tracefs.check_mounted()
    assert caught.value.need == "CAP_SYS_ADMIN"
    assert caught.value.errno == 0  # no call was made that could have failed
    assert "not permitted" not in str(caught.value)
    assert "the daemon and `record` mount it" in str(caught.value)
    assert not tracefs.mounted


def test_no_instances_no_reason(tree: Path) -> None:
    """If no instance can be made, a refused filter has no reason to show."""
    assert Tracefs(tree).filter_refusal(Tracepoint("sched", "sched_switch"), "x == 1") == ""
