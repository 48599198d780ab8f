# SPDX-License-Identifier: Apache-2.0
"""The installed service, whose triggers the guest's systemd fires."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemons import wait_for
from tests.vm.service import CONFIG, STATE, UNIT, session, status_of, systemctl

UNITS: Final = Path("/run/systemd/system")
FAILING: Final = "failing.service"


@pytest.mark.usefixtures("service")
def test_a_unit_that_fails() -> None:
    """OnFailure= makes one incident of it, and the second failure is held back and counted."""
    CONFIG.write_text(
        '[[trigger]]\nname = "unit"\nkind = "unit"\nunit = "failing*"\nanswers = []\n'
    )
    (UNITS / FAILING).write_text(
        "[Unit]\nOnFailure=collectord-incident@%n.service\n"
        "[Service]\nType=oneshot\nExecStart=/bin/false\n"
    )
    try:
        systemctl("daemon-reload")
        systemctl("start", UNIT)
        assert session("blackbox")["state"] == "running"
        systemctl("start", FAILING, status=1)

        def found() -> list[Path]:
            return sorted((STATE / "incidents").glob("*-unit/incident.json"))

        wait_for(found, "an incident of the unit")
        systemctl("reset-failed", FAILING)
        systemctl("start", FAILING, status=1)

        def held_back() -> bool:
            told = {one["name"]: one for one in status_of()["incidents"]["triggers"]}["unit"]
            return bool(told["suppressed"]["cooldown"] == 1)

        wait_for(held_back, "a failure that is held back")
        (path,) = found()
        assert json.loads(path.read_text())["reason"] == f"the unit {FAILING} has failed"
    finally:
        (UNITS / FAILING).unlink()
        subprocess.run(["systemctl", "reset-failed"], check=True)
        systemctl("daemon-reload")
