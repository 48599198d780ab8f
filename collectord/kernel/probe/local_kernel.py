# SPDX-License-Identifier: Apache-2.0
"""The kernel of this process, as its probe sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from collectord.kernel.port import Kernel

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.kernel.tracefs.mount import Tracefs


class LocalKernel(Kernel, Protocol):
    """The kernel of this process, whose files the probe behind `Kernel.facts` reads as well."""

    @property
    def proc(self) -> Path:
        """Root of procfs."""

    @property
    def sys(self) -> Path:
        """Root of sysfs."""

    @property
    def tracefs(self) -> Tracefs:
        """The tracefs below `sys`, mounted or not."""
