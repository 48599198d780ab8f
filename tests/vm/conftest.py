# SPDX-License-Identifier: Apache-2.0
"""The fixture of tests of the service."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.vm.service import (
    CONFIG,
    NO_BCC,
    SOCKETS,
    STATE,
    UNIT,
    WITHOUT_BPF,
    shown,
    systemctl,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def service() -> Iterator[None]:
    """Provide a service that is stopped, without state and history; it is so afterwards.

    Its flight recorder is ftrace's, unless the test takes `WITHOUT_BPF` away.
    """
    assert shown("ActiveState") == ("inactive",)
    WITHOUT_BPF.write_text(NO_BCC)
    yield
    CONFIG.unlink(missing_ok=True)
    WITHOUT_BPF.unlink(missing_ok=True)
    systemctl("disable", "--now", "--quiet", UNIT)
    systemctl("stop", *SOCKETS)  # those of a service that has failed are still there
    if shown("ActiveState") == ("failed",):
        systemctl("reset-failed", UNIT)
    shutil.rmtree(STATE)
    subprocess.run(["journalctl", "--rotate", "--vacuum-size=1", "--quiet"], check=True)
