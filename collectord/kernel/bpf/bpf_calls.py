# SPDX-License-Identifier: Apache-2.0
"""bpf(2): maps by descriptor, the kernel's counters of programs, and ids of objects.

Sizes are read from the kernel, never taken from a caller: a call about a map writes as many bytes
as the map's own sizes say, whatever the buffer holds.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord.errors import MissingFeature
from collectord.kernel.host import cpus, errno_mapping
from collectord.kernel.host.errno_mapping import DENIED, Meaning
from collectord.kernel.values.bpf_objects import PER_CPU, MapInfo, ProgramInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from collectord.errors import KernelError

TRACEPOINT: Final = 5  # enum bpf_prog_type
_ENOTSUPP: Final = 524  # include/linux/errno.h; it reaches the caller, and libc has no name for it
# struct bpf_map_info: type, id, key_size, value_size, max_entries, map_flags, name.
_MAP_INFO: Final = struct.Struct("<IIIIII16s")
# struct bpf_prog_info.
_PROGRAM_HEAD: Final = struct.Struct("<II8s")  # type, id, tag
_PROGRAM_LOADED: Final = struct.Struct("<QI")  # load_time, created_by_uid
_PROGRAM_LOADED_AT: Final = 40
_PROGRAM_NAME: Final = struct.Struct("<16s")
_PROGRAM_NAME_AT: Final = 64
_U64: Final = struct.Struct("<Q")
_RUN_TIME_AT: Final = 192  # since 5.1
_RUN_COUNT_AT: Final = 200
_RECURSION_MISSES_AT: Final = 208  # since 5.12
_MEANINGS: Final = (
    Meaning(
        DENIED,
        "CAP_BPF",
        hint="needs CAP_BPF and CAP_PERFMON, for ids and statistics CAP_SYS_ADMIN; "
        "with these a seccomp filter, a security module or lockdown denies",
    ),
    Meaning((errno.ENOSYS, errno.EOPNOTSUPP), feature="bpf"),
    Meaning((errno.E2BIG,), hint="the map is full, or has no such index; give it more entries"),
)


def refused(code: int, message: str) -> KernelError:
    """Return the error for a refused bpf(2)."""
    known = errno.EOPNOTSUPP if code == _ENOTSUPP else code
    return errno_mapping.refused(known, message, "bpf", *_MEANINGS)


def unsupported(code: int) -> bool:
    """Whether the errno says that this kernel, or this type of map, lacks the command."""
    return code in (errno.EINVAL, errno.EOPNOTSUPP, _ENOTSUPP)


def object_info(fd: int, what: str) -> bytes:
    """Return the info of a map, program or BTF, as much of it as this kernel has.

    Args:
        fd: descriptor of the object.
        what: name of the object's kind, for the error.

    Raises:
        KernelError: the kernel refuses the query.
    """
    try:
        return _syscalls.bpf_object_info(fd)[0]
    except OSError as error:
        raise refused(error.errno or 0, f"cannot ask about a {what}") from error


def map_info(fd: int) -> MapInfo:
    """Return the sizes of the map behind `fd`. Raises KernelError."""
    kind, number, key_bytes, value_bytes, max_entries, _, name = _MAP_INFO.unpack_from(
        object_info(fd, "BPF map")
    )
    return MapInfo(
        id=number,
        type=kind,
        name=_text(name),
        key_bytes=key_bytes,
        value_bytes=value_bytes,
        max_entries=max_entries,
        cpus=len(cpus.possible()) if kind in PER_CPU else 1,
    )


def map_lookup(fd: int, key: bytes, *, info: MapInfo | None = None) -> bytes | None:
    """Return a key's value, of all CPUs (`MapInfo.entry_bytes`); None if the key is absent.

    Args:
        fd: descriptor of the map.
        key: `key_bytes` bytes.
        info: the map's sizes, if they are known already.

    Raises:
        KernelError: the map cannot be read.
    """
    info = info or map_info(fd)
    _check_size(key, info.key_bytes, "key")
    try:
        return _syscalls.bpf_map_lookup(fd, key, info.entry_bytes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise refused(error.errno or 0, f"cannot read BPF map {info.name}") from error


def map_update(
    fd: int, key: bytes, value: bytes | Sequence[bytes], *, info: MapInfo | None = None
) -> None:
    """Set the value of a key.

    Args:
        fd: descriptor of the map.
        key: `key_bytes` bytes.
        value: `value_bytes` bytes; in a per-CPU map one value for every possible CPU in order of
            their number, or one that all CPUs get.
        info: the map's sizes, if they are known already.

    Raises:
        KernelError: the map refuses the value.
    """
    info = info or map_info(fd)
    values = [value] * info.cpus if isinstance(value, bytes) else list(value)
    if len(values) != info.cpus or any(len(one) != info.value_bytes for one in values):
        message = f"{info.cpus} values of {info.value_bytes} bytes go into BPF map {info.name}"
        raise ValueError(message)
    _check_size(key, info.key_bytes, "key")
    packed = b"".join(one.ljust(info.cpu_bytes, b"\0") for one in values)
    try:
        _syscalls.bpf_map_update(fd, key, packed)
    except OSError as error:
        raise refused(error.errno or 0, f"cannot write to BPF map {info.name}") from error


def map_next_key(fd: int, key: bytes | None, info: MapInfo) -> bytes | None:
    """Return the key after `key`, the first one if `key` is gone or None; None after the last.

    Raises:
        KernelError: the map's keys cannot be listed.
    """
    if key is not None:
        _check_size(key, info.key_bytes, "key")
    try:
        return _syscalls.bpf_map_next_key(fd, key, info.key_bytes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        message = f"cannot list the keys of BPF map {info.name}"
        raise refused(error.errno or 0, message) from error


def program_info(fd: int) -> ProgramInfo:
    """Return the kernel's info of the program behind `fd`. Raises KernelError."""
    info = object_info(fd, "BPF program")
    kind, number, tag = _PROGRAM_HEAD.unpack_from(info)
    loaded_ns, user = _PROGRAM_LOADED.unpack_from(info, _PROGRAM_LOADED_AT)
    (name,) = _PROGRAM_NAME.unpack_from(info, _PROGRAM_NAME_AT)

    def counter(at: int) -> int | None:
        if len(info) < at + _U64.size:
            return None
        value: int = _U64.unpack_from(info, at)[0]
        return value

    return ProgramInfo(
        id=number,
        name=_text(name),
        type=kind,
        run_time_ns=counter(_RUN_TIME_AT),
        run_count=counter(_RUN_COUNT_AT),
        recursion_misses=counter(_RECURSION_MISSES_AT),
        tag=tag.hex(),
        loaded_ns=loaded_ns,
        user=user,
    )


def enable_stats() -> int:
    """Have the kernel count runs and run time of all programs while the descriptor is open.

    This costs two clock readings for each run of any program.

    Returns:
        The descriptor, close-on-exec.

    Raises:
        MissingFeature: before Linux 5.8.
        MissingPrivilege: without CAP_SYS_ADMIN.
    """
    try:
        return _syscalls.bpf_count_runs()
    except OSError as error:
        message = "cannot count runs of BPF programs"
        if error.errno != errno.EINVAL:
            raise refused(error.errno or 0, message) from error
        raise MissingFeature(
            message,
            feature="BPF_ENABLE_STATS",
            syscall="bpf",
            errno=errno.EINVAL,
            hint="it needs Linux 5.8; set stats = false in [bpf]",
        ) from error


def program_ids(after: int = 0) -> tuple[int, ...]:
    """Return ids of the host's programs beyond `after`.

    Raises:
        MissingPrivilege: without CAP_SYS_ADMIN.
    """
    return tuple(ids("program", after))


def ids(kind: Literal["program", "map", "link"], after: int = 0) -> Iterator[int]:
    """Yield the ids of all objects of a kind beyond `after`.

    Ids only grow, so the walk ends even while objects come and go.
    """
    try:
        while (number := _syscalls.bpf_next_id(kind, after)) is not None:
            yield number
            after = number
    except OSError as error:
        raise refused(error.errno or 0, "cannot list BPF objects") from error


def _check_size(content: bytes, size: int, what: str) -> None:
    if len(content) != size:
        message = f"a {what} of {len(content)} bytes where the BPF map has {size}"
        raise ValueError(message)


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode(errors="replace")
