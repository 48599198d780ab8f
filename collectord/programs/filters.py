# SPDX-License-Identifier: Apache-2.0
"""Filters that programs have in common: parameters that collectord.h compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from collectord.config.listen_address import PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

Filter = Literal["pid", "tid", "uid", "comm", "cgroup", "path", "local_port", "remote_port"]

# A `*` at the end may follow all 15 bytes that the kernel keeps of a name.
_COMM_BYTES: Final = 16
# Each byte costs two instructions of the program.
_PATH_BYTES: Final = 128

# Keys of `parameter.ParameterConfig`, by filter.
FILTERS: Final[Mapping[Filter, Mapping[str, object]]] = {
    "pid": {"type": "int", "default": 0, "min": 0, "help": "only this process, 0 for all"},
    "tid": {"type": "int", "default": 0, "min": 0, "help": "only this thread, 0 for all"},
    "uid": {"type": "int", "default": -1, "min": -1, "help": "only this user's, -1 for all"},
    "comm": {
        "type": "string",
        "default": "",
        "max_bytes": _COMM_BYTES,
        "help": "only tasks of this name, or whose name begins so if it ends in `*`",
    },
    "cgroup": {
        "type": "int",
        "default": 0,
        "min": 0,
        "help": "only tasks in the cgroup v2 with this inode number or below it, 0 for all",
    },
    "path": {
        "type": "string",
        "default": "",
        "max_bytes": _PATH_BYTES,
        "help": "only this path, or those that begin so if it ends in `*`",
    },
    "local_port": {
        "type": "int",
        "default": 0,
        "min": 0,
        "max": PORT_MAX,
        "help": "only this port on this side, 0 for all",
    },
    "remote_port": {
        "type": "int",
        "default": 0,
        "min": 0,
        "max": PORT_MAX,
        "help": "only this port on the other side, 0 for all",
    },
}
# Functions of collectord.h that compare with a filter; a program may do it itself, too.
_OF_TASK: Final = frozenset({"collectord_wanted"})
_OF_PORTS: Final = frozenset({"collectord_ports_wanted"})
COMPARED_BY: Final[Mapping[Filter, frozenset[str]]] = {
    **dict.fromkeys(("pid", "tid", "uid", "cgroup"), _OF_TASK),
    "comm": _OF_TASK | {"collectord_comm_wanted"},
    "path": frozenset({"collectord_path_wanted"}),
    **dict.fromkeys(("local_port", "remote_port"), _OF_PORTS),
}
