# SPDX-License-Identifier: Apache-2.0
"""The disk of one session takes nothing for a while: those on another one do not notice."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.disks import ext4, frozen
from tests.support.hung import check_others_go_on, check_removed_waits_alone

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

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
