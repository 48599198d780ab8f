# SPDX-License-Identifier: Apache-2.0
"""The unit file agrees with the program's exit codes, names and paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from collectord import errors
from collectord.config.schema import Config
from collectord.control.activation import CONTROL, METRICS
from collectord.control.sockets import SOCKET_UMASK
from collectord.control.watchdog import _ROUNDS
from collectord.plan.drain_threads import AUTO_FIFO
from collectord.session.drain_loop import _LEAVE_S

ROOT: Final = Path(__file__).resolve().parents[2]


def _service() -> dict[str, str]:
    """Return the service's settings; none of those that are read here is given twice."""
    return _unit("collectord.service")


def _unit(name: str) -> dict[str, str]:
    lines = (ROOT / "systemd" / name).read_text().splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith(("#", "[")))
    return {key: value for key, _, value in pairs if key}


def _exit_codes(kind: type[errors.CollectordError]) -> set[int]:
    return {kind.exit_code}.union(*(_exit_codes(below) for below in kind.__subclasses__()))


def test_only_a_run_time_failure_restarts_the_daemon() -> None:
    """Every exit code that a restart cannot mend is listed, and no other that a daemon gives."""
    listed = {int(code) for code in _service()["RestartPreventExitStatus"].split()}
    of_clients = {errors.NoDaemon.exit_code}
    assert listed == _exit_codes(errors.CollectordError) - {1} - of_clients


def test_a_hung_daemon_is_restarted() -> None:
    """The watchdog leaves time for several looks, and for a removal's wait within a pass."""
    service = _service()
    assert service["Restart"] == "on-failure"  # the watchdog's end is one
    assert int(service["WatchdogSec"]) / _ROUNDS > _LEAVE_S
    assert service["Type"] == "notify"


def test_what_may_be_had_is_had() -> None:
    """The service has each capability that it may have; a drop-in must take it from both sets."""
    text = (ROOT / "systemd/collectord.service").read_text()
    had, allowed = (
        " ".join(re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)).split()
        for key in ("AmbientCapabilities", "CapabilityBoundingSet")
    )
    assert had == allowed
    assert len(set(had)) == len(had)
    drop_in = "AmbientCapabilities=~CAP_SYS_ADMIN\nCapabilityBoundingSet=~CAP_SYS_ADMIN\n"
    assert drop_in in (ROOT / "docs/security.md").read_text()
    assert "CAP_SYS_ADMIN" in had


def test_tracefs_takes_an_owner_and_no_capability() -> None:
    """Its user owns what the service writes there before it starts, and root does again after."""
    service, given = _service(), _unit("collectord-tracefs.service")
    for path in (ROOT / "systemd").iterdir():
        assert "DAC_OVERRIDE" not in " ".join(
            re.findall(r"^.*Capabilit.*=.*$", path.read_text(), re.MULTILINE)
        )
    assert "collectord-tracefs.service" in service["Wants"].split()
    assert given["Before"] == "collectord.service"
    assert given["StopWhenUnneeded"] == "yes"
    assert given["ReadWritePaths"] == service["ReadWritePaths"]
    text = (ROOT / "systemd/collectord-tracefs.service").read_text()
    written = set(service["ReadWritePaths"].replace("-/", "/").split())
    for key, owner in {"ExecStart": service["User"], "ExecStop": "root"}.items():
        (found,) = re.findall(rf"^{key}=-chown {owner} (.+)$", text, re.MULTILINE)
        assert set(found.split()) == written


def test_the_default_priority_of_drain_threads_is_permitted() -> None:
    """Theirs alone: the service as a whole is neither raised nor in real time."""
    service = _service()
    assert int(service["LimitRTPRIO"]) == AUTO_FIFO
    assert "RestrictRealtime" not in service
    assert not {"Nice", "CPUSchedulingPolicy", "CPUSchedulingPriority"} & set(service)


def test_sockets_are_where_the_default_configuration_has_them() -> None:
    """Each has the name that the daemon knows it by, and the permissions that it would give it."""
    config = Config()
    metrics, control = (_unit(f"collectord-{name}.socket") for name in (METRICS, CONTROL))
    assert metrics["ListenStream"] == str(config.metrics.listen)
    assert control["ListenStream"] == config.control.socket
    assert int(control["SocketMode"], 8) == 0o777 & ~SOCKET_UMASK
    service = _service()
    assert control["SocketUser"] == service["User"]
    assert control["SocketGroup"] == service["Group"]
    for name, unit in {METRICS: metrics, CONTROL: control}.items():
        assert unit["FileDescriptorName"] == name
        assert unit["Service"] == unit["StopPropagatedFrom"] == "collectord.service"
        assert "Accept" not in unit
        assert f"collectord-{name}.socket" in service["Sockets"].split()


def test_crashes_do_not_use_up_the_starts() -> None:
    """Only starts that follow each other faster than restarts do are limited."""
    service = _service()
    restarts = int(service["StartLimitIntervalSec"]) / int(service["RestartSec"])
    assert restarts <= int(service["StartLimitBurst"])


def test_every_unit_is_installed() -> None:
    """`make install` names each file of the folder, in one form or another."""
    install = (ROOT / "Makefile").read_text().replace("{control,metrics}", "*")
    for path in (ROOT / "systemd").iterdir():
        name = re.sub(r"-(control|metrics)\.", "-*.", path.name)
        assert f"systemd/{name}" in install, path.name


def test_default_paths_are_the_units_directories() -> None:
    """The directories that systemd makes are those that the default configuration uses."""
    service, config = _service(), Config()
    assert config.daemon.state_dir == f"/var/lib/{service['StateDirectory']}"
    assert str(Path(config.control.socket).parent) == f"/run/{service['RuntimeDirectory']}"


def test_the_shipper_has_no_privilege() -> None:
    """It has a user of its own, reads as a member of the group, and it alone has credentials."""
    ship, daemon = _unit("collectord-ship.service"), _service()
    assert ship["CapabilityBoundingSet"] == ship["AmbientCapabilities"] == ""
    assert ship["User"] != daemon["User"]
    assert ship["Group"] == daemon["Group"]
    assert ship["StateDirectory"] == Path(Config().ship.directory).name
    assert f"u {ship['User']} " in (ROOT / "systemd/collectord.sysusers").read_text()
    for path in (ROOT / "systemd").iterdir():
        assert ("LoadCredential" in path.read_text()) == (path.name == "collectord-ship.service")
