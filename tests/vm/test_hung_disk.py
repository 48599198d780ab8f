# SPDX-License-Identifier: Apache-2.0
"""A disk that does not answer for a while: sessions on another one are not affected."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.disks import suspendable_ext4, suspended
from tests.support.hung import check_others_go_on

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

DISK_BYTES: Final = 1 << 30


def test_a_device_that_is_suspended_holds_up_no_other(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """Sessions on another disk lose nothing, and go on to their end; what is in flight comes."""
    with suspendable_ext4(tmp_path / "disk", DISK_BYTES) as (root, device):
        check_others_go_on(
            tmp_path, start_cli, generator, root / "busy", partial(suspended, device)
        )
