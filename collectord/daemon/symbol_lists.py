# SPDX-License-Identifier: Apache-2.0
"""The kernel's functions of this boot, kept in the directories of sessions with call chains."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.session.lone_call import lone_call
from collectord.sink.symbol_list import keep_symbols

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()
_KALLSYMS: Final = Path("/proc/kallsyms")


class SymbolLists:
    """Keeps the list in the directory of each session with call chains, once a boot.

    Threads of their own do that: those of the disks have segments to seal meanwhile.

    Args:
        boot_id: of this boot.
    """

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._asked: set[str] = set()  # directories

    def keep(self, plans: Iterable[SessionPlan]) -> None:
        """Begin to keep the list where it is not yet; nobody waits for that."""
        for plan in plans:
            directory = plan.sink.directory
            if plan.sink.single_file is None and directory not in self._asked and plan.has_chains:
                self._asked.add(directory)
                lone_call(partial(_keep, Path(directory), self._boot_id))


def _keep(directory: Path, boot_id: str) -> None:
    try:
        with open_folder(directory, Trust.WRITE) as folder:
            keep_symbols(folder, boot_id, _KALLSYMS)
    except (OSError, UnsafePath) as error:
        _LOG.warning("kernel_symbols_not_kept", directory=str(directory), error=str(error))
