# SPDX-License-Identifier: Apache-2.0
"""What a configuration needs to know of this host to run BPF programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collectord.kernel.probe.bpf_probe import BpfWanted
from collectord.source import bcc_client

if TYPE_CHECKING:
    from collectord.config.schema import BpfConfig


def wanted(config: BpfConfig, names: tuple[str, ...] | None) -> BpfWanted:
    """What `kernel_probe.probe` is to look for.

    Args:
        config: where programs, bcc and headers are.
        names: programs, None for all.
    """

    def find_python() -> tuple[str, str]:
        return (
            bcc_client.find_python((config.python,))
            if config.python
            else (bcc_client.find_python())
        )

    return BpfWanted(names, find_python, Path(config.programs), config.headers)
