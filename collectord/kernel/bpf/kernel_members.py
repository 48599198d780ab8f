# SPDX-License-Identifier: Apache-2.0
"""Places of members in the running kernel's structs, for programs built with other headers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from collectord.codec.bpf_symbols import member_offset
from collectord.errors import MissingFeature

if TYPE_CHECKING:
    from pathlib import Path

BTF: Final = "kernel/btf/vmlinux"


@functools.cache
def defines(members: tuple[str, ...], sys: Path) -> str:
    """Return lines that define COLLECTORD_AT_STRUCT_MEMBER for each STRUCT.MEMBER.

    Raises:
        MissingFeature: the kernel has no such member, or does not describe its types.
    """
    if not members:
        return ""
    try:
        data = (sys / BTF).read_bytes()
    except OSError as error:
        raise MissingFeature(
            f"this kernel does not describe its types: {sys / BTF}: {error.strerror}",
            feature="btf",
            hint="it needs CONFIG_DEBUG_INFOBTF",
        ) from error
    return "".join(_define(data, member) for member in members)


def _define(data: bytes, name: str) -> str:
    struct, _, member = name.partition(".")
    at = member_offset(data, struct.encode(), member.encode())
    if at < 0:
        raise MissingFeature(f"this kernel has no {name}", feature=name)
    return f"#define COLLECTORD_AT_{struct.upper()}_{member.upper()} {at}\n"
