# SPDX-License-Identifier: Apache-2.0
"""Names of interfaces and devices by their numbers."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from collectord.session.maps import device_names
from collectord.session.maps.device_names import HostNames

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_interfaces_of_this_host() -> None:
    """Each has its name, also when an event loop runs; a number that none has stays that."""
    host = HostNames()
    for ifindex, name in socket.if_nameindex():
        assert host.interface(ifindex) == name

    async def inside() -> str:
        return HostNames().interface(socket.if_nametoindex("lo"))

    assert asyncio.run(inside()) == "lo"
    assert host.interface(2**31 - 1) == "2147483647"


def test_one_dump_for_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that no interface has do not cost a dump each; a new interface is found."""
    now_s = 100.0
    found = {1: "lo"}
    dumps = []

    def dump() -> dict[int, str]:
        dumps.append(now_s)
        return found

    monkeypatch.setattr("collectord.session.maps.device_names.time.monotonic", lambda: now_s)
    monkeypatch.setattr(device_names, "_interfaces", dump)
    host = HostNames()
    assert [host.interface(ifindex) for ifindex in (1, 7, 8, 9, 1)] == ["lo", "7", "8", "9", "lo"]
    assert len(dumps) == 1
    found = {7: "new"}
    assert host.interface(7) == "7"
    now_s += 1
    assert [host.interface(ifindex) for ifindex in (7, 1)] == ["new", "lo"]
    assert len(dumps) == 2


def test_devices(tmp_path: Path) -> None:
    """The name of a block device, its numbers where there is none; looked at again until then."""
    block = tmp_path / "dev/block"
    block.mkdir(parents=True)
    (block / "8:1").symlink_to("../../devices/pci/sda/sda1")
    host = HostNames(tmp_path)
    assert host.device(8 << 20 | 1) == "sda1"
    assert host.device(7 << 20 | 300) == "7:300"
    (block / "7:300").symlink_to("../../devices/virtual/block/loop300")
    assert host.device(7 << 20 | 300) == "loop300"
    (block / "8:1").unlink()
    assert host.device(8 << 20 | 1) == "sda1"
