# SPDX-License-Identifier: Apache-2.0
"""Requirements of relay sources on this host: debugfs, devices that can be traced, channels."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.facts.kernel_facts import RelayFacts
from collectord.kernel.host import lockdown
from collectord.kernel.relay import debugfs
from collectord.kernel.relay.block_device import traceable
from collectord.kernel.relay.relay_channel import files_of
from collectord.kernel.values.relay_files import GLOBAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.kernel.probe.local_kernel import LocalKernel

# Clients of relay in the kernel: their channels, below debugfs. Only its name tells a relay file
# from others; those of blktrace come and go with it.
_KNOWN: Final = (
    "dri/*/gt*/uc/guc_log",
    "dri/*/i915_guc_log",
    "ieee80211/*/*/spectral_scan",
    "ieee80211/*/*/fwlog_data",
)
_NUMBER: Final = re.compile(r"\d+$", re.ASCII)


def probe_relay(kernel: LocalKernel, wanted: Iterable[str] | None) -> RelayFacts:
    """Probe the relay channels of this host; nothing is changed.

    Args:
        kernel: the kernel, with its procfs and sysfs.
        wanted: devices and channels that a configuration names; None to look for channels too.
    """
    root = debugfs.find(kernel.proc)
    names = sorted(entry.name for entry in (kernel.sys / "class/block").glob("*"))
    devices = [f"/dev/{name.replace('!', '/')}" for name in names]
    devices += [path for path in wanted or () if path not in devices and _is_block(path)]
    problem = need = remedy = ""
    channels: dict[str, tuple[int, ...]] = {}
    level = lockdown.read_lockdown(kernel.sys)
    # No remedy is certain to help while lockdown may be another cause.
    doubt = f"; {debugfs.STILL_CLOSED}" if level == lockdown.UNKNOWN else ""
    if level in lockdown.CLOSES_DEBUGFS or (root is not None and debugfs.locked(root)):
        problem, need = "kernel lockdown closes relay files", lockdown.NEED
        remedy = debugfs.LOCKDOWN_REMEDY
    elif root is None:
        problem, remedy = "debugfs is not mounted", debugfs.MOUNT_REMEDY + doubt
        need = "" if os.geteuid() == 0 else debugfs.NEED  # to mount it, and then to read it
    elif not os.access(root, os.R_OK | os.X_OK, effective_ids=True):
        problem, need = f"{root} may not be read", debugfs.NEED
        remedy = f"needs {need}{doubt}"
    else:
        channels = dict(_channels(root, wanted))
    return RelayFacts(
        debugfs=str(root or ""),
        problem=problem,
        need=need,
        remedy=remedy,
        blktrace=traceable(names, kernel.sys),
        devices=tuple(devices),
        hidden=tuple(path for path in devices if not _is_block(path)),
        channels=channels,
    )


def _is_block(path: str) -> bool:
    try:
        return stat.S_ISBLK(Path(path).stat().st_mode)
    except OSError:
        return False


def _channels(root: Path, wanted: Iterable[str] | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path in wanted or ():
        try:
            found = files_of(Path(path))
        except OSError:
            continue
        if found:
            yield path, tuple(found)
    if wanted is not None:
        return
    for pattern in _KNOWN:
        cpus: defaultdict[str, list[int]] = defaultdict(list)
        for path in map(str, root.glob(pattern + "*")):
            number = _NUMBER.search(path)
            cpus[_NUMBER.sub("", path)].append(int(number[0]) if number else GLOBAL)
        yield from ((path, tuple(sorted(found))) for path, found in cpus.items())
