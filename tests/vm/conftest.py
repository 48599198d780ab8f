# SPDX-License-Identifier: Apache-2.0
"""The fixture of tests of the service."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.vm.service import CONFIG, SOCKETS, STATE, UNIT, shown, systemctl

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def service() -> Iterator[None]:
    """Provide a service that is stopped, without state and history; it is so afterwards."""
    assert shown("ActiveState") == ("inactive",)
    yield
    CONFIG.unlink(missing_ok=True)
    systemctl("disable", "--now", "--quiet", UNIT)
    systemctl("stop", *SOCKETS)  # those of a service that has failed are still there
    if shown("ActiveState") == ("failed",):
        systemctl("reset-failed", UNIT)
    shutil.rmtree(STATE)
    subprocess.run(["journalctl", "--rotate", "--vacuum-size=1", "--quiet"], check=True)
