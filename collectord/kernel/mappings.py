# SPDX-License-Identifier: Apache-2.0
"""Mappings of rings, which whoever holds a ring's descriptor makes for itself."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from collectord._native._core import AuxMap, PageMap, RingMap
from collectord.kernel.host import errno_mapping
from collectord.kernel.values.host import kept_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.kernel.values.host import Holder
    from collectord.kernel.values.limits import Limits


def map_ring(
    fd: int, data_bytes: int, limits: Callable[[], Limits], *, overwrite: bool = False
) -> RingMap:
    """Map an event's ring: a control page and `data_bytes` (a power of two of pages).

    With `overwrite` the mapping is read-only: the kernel then does not wait for a reader, and
    the event must have `write_backward`.

    Args:
        fd: descriptor of the event.
        data_bytes: size of the ring.
        limits: returns the limits in effect; called if the kernel refuses.
        overwrite: see above.

    Raises:
        MissingPrivilege: EPERM, over the mlock budget.
        KernelError: any other errno.
    """
    try:
        return RingMap(fd, data_bytes, overwrite=overwrite)
    except OSError as error:
        raise errno_mapping.map_refused(error.errno or 0, data_bytes, limits()) from error


def map_aux(
    fd: int, ring: RingMap, aux_bytes: int, limits: Callable[[], Limits], *, snapshot: bool
) -> AuxMap:
    """Map the AUX area of the event that owns a ring.

    Args:
        fd: descriptor of the event.
        ring: the mapping of its ring; the area is closed before it.
        aux_bytes: a power of two of pages.
        limits: as for `map_ring`.
        snapshot: map it read-only, so that the kernel overwrites what nobody has read.

    Raises:
        MissingFeature: the PMU has no AUX area.
        MissingPrivilege: EPERM, over the mlock budget.
        KernelError: any other errno.
    """
    try:
        return AuxMap(fd, ring, aux_bytes, snapshot=snapshot)
    except OSError as error:
        code = error.errno or 0
        if code == errno.EOPNOTSUPP:
            raise errno_mapping.no_aux(code) from error
        raise errno_mapping.map_refused(code, aux_bytes, limits(), what="AUX area") from error


def map_pages(fd: int, users: Callable[[], Iterable[Holder]]) -> PageMap:
    """Map an ftrace ring: its meta page and all sub-buffers.

    Args:
        fd: descriptor of the ring.
        users: returns other processes that have its instance open; called if the kernel refuses.

    Raises:
        MissingFeature: this kernel cannot map the ring.
        MissingPrivilege: it may not be mapped.
        KernelError: EBUSY, with the process that keeps it; others.
    """
    try:
        return PageMap(fd)
    except OSError as error:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        raise errno_mapping.pages_refused(error.errno or 0, str(path), kept_by(users())) from error
