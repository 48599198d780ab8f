# SPDX-License-Identifier: Apache-2.0
"""The disk of one session takes nothing for a while: those on another one do not notice."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.disks import ext4, frozen
from tests.support.hung import (
    check_added_begin_later,
    check_others_go_on,
    check_removed_waits_alone,
    check_stop_waits_for_none_that_begins,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

DISK_BYTES: Final = 1 << 30


def test_a_file_system_that_is_frozen_holds_up_no_other(
    tmp_path: Path, start_cli: Start, generator: Generator, require: Callable[[str], None]
) -> None:
    """Sessions on another one lose nothing, and go on to their end."""
    require("loop devices")
    with ext4(tmp_path / "disk", DISK_BYTES) as root:
        check_others_go_on(tmp_path, start_cli, generator, root / "busy", partial(frozen, root))


def test_a_session_that_is_removed_waits_for_its_disk_alone(
    tmp_path: Path, start_cli: Start, generator: Generator, require: Callable[[str], None]
) -> None:
    """Reloads and a stop do not, and it is accounted for when the disk answers."""
    require("loop devices")
    with ext4(tmp_path / "disk", DISK_BYTES) as root:
        busy, hung = root / "busy", partial(frozen, root)
        check_removed_waits_alone(tmp_path, start_cli, generator, busy, hung)


def test_sessions_that_are_added_there_begin_later(
    tmp_path: Path, start_cli: Start, generator: Generator, require: Callable[[str], None]
) -> None:
    """Other reloads go on, also one that changes its mind, and the status says who waits."""
    require("loop devices")
    with ext4(tmp_path / "disk", DISK_BYTES) as root:
        check_added_begin_later(tmp_path, start_cli, generator, root, partial(frozen, root))


def test_a_stop_does_not_wait_for_sessions_that_begin(
    tmp_path: Path, start_cli: Start, generator: Generator, require: Callable[[str], None]
) -> None:
    """Nor does a start: others record and are sealed, and nothing but waiting threads is left."""
    require("loop devices")
    with ext4(tmp_path / "disk", DISK_BYTES) as root:
        hung = partial(frozen, root)
        check_stop_waits_for_none_that_begins(tmp_path, start_cli, generator, root, hung)


def test_a_recording_that_waits_for_its_disk_can_be_stopped(
    tmp_path: Path, start_cli: Start, require: Callable[[str], None]
) -> None:
    """It leaves nothing but a thread, which ends with the disk's answer."""
    require("loop devices")
    with ext4(tmp_path / "disk", DISK_BYTES) as root:
        words = ("record", "-e", daemons.EVENT, "--output-dir", root / "made", "--duration", "10m")
        with frozen(root):
            process = start_cli(*words)
            daemons.wait_for(partial(_waits, process.pid), "a thread that waits for the disk")
            process.send_signal(signal.SIGINT)
            daemons.wait_for(partial(daemons.has_left, process.pid), "its end")
        _, said = process.communicate(timeout=daemons.PATIENCE_S)
    assert "internal_error" not in said, said


def _waits(pid: int) -> bool:
    """Whether a thread of a process waits, and cannot be interrupted."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return "D" in {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}
