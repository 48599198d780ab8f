# SPDX-License-Identifier: Apache-2.0
"""The unit file agrees with the program's exit codes, names and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from collectord import errors
from collectord.config.schema import Config

ROOT: Final = Path(__file__).resolve().parents[2]


def _service() -> dict[str, str]:
    """The unit's settings; none of those that are read here is given twice."""
    lines = (ROOT / "systemd/collectord.service").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith(("#", "[")))
    return {key: value for key, _, value in pairs if key}


def _exit_codes(kind: type[errors.CollectordError]) -> set[int]:
    return {kind.exit_code}.union(*(_exit_codes(below) for below in kind.__subclasses__()))


def test_only_a_run_time_failure_restarts_the_daemon() -> None:
    """Every exit code that a restart cannot mend is listed, and no other."""
    listed = {int(code) for code in _service()["RestartPreventExitStatus"].split()}
    assert listed == _exit_codes(errors.CollectordError) - {1}


def test_default_paths_are_the_units_directories() -> None:
    """The directories that systemd makes are those that the default configuration uses."""
    service, config = _service(), Config()
    assert config.daemon.state_dir == f"/var/lib/{service['StateDirectory']}"
    assert str(Path(config.control.socket).parent) == f"/run/{service['RuntimeDirectory']}"
