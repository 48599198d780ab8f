# SPDX-License-Identifier: Apache-2.0
"""All entries of a BPF map, read while programs change it.

A batch reads whole hash buckets under their locks: an entry that is there all the time is read
once, whatever comes and goes beside it. Where the kernel (before 5.6) or the type of map has no
batch, keys are walked one by one. When the key that the walk stands on is deleted, the kernel
starts again at the first one: no entry is missed, an entry that is read twice counts once, and the
number of steps is limited. The walk can miss an entry that `map_update` replaces meanwhile,
because the kernel moves that to the front of its bucket; an update in place moves nothing.
"""

from __future__ import annotations

import errno
from typing import Final

from collectord._native import _syscalls
from collectord.kernel.bpf.bpf_calls import (
    map_info,
    map_lookup,
    map_next_key,
    refused,
    unsupported,
)
from collectord.kernel.values.bpf_objects import ENTRIES_MAX, Entries, MapInfo, MapType

_BATCH_BYTES: Final = 1 << 18
_STEPS_MIN: Final = 1024
_WALKS_MAX: Final = 4
_ARRAYS: Final = (MapType.ARRAY, MapType.PERCPU_ARRAY)
# Other types have batches that walk by keys, and may so read an entry twice.
_BATCHED: Final = (
    *_ARRAYS,
    MapType.HASH,
    MapType.LRU_HASH,
    MapType.PERCPU_HASH,
    MapType.LRU_PERCPU_HASH,
)


def map_entries(fd: int, *, info: MapInfo | None = None, limit: int = ENTRIES_MAX) -> Entries:
    """Read the entries of a map.

    Args:
        fd: descriptor of the map.
        info: the map's sizes, if they are known already.
        limit: number of entries at which reading stops; at most one batch more may come.

    Raises:
        KernelError: the map cannot be read.
    """
    info = info or map_info(fd)
    return _batches(fd, info, limit) or walk_entries(fd, info=info, limit=limit)


def walk_entries(fd: int, *, info: MapInfo | None = None, limit: int = ENTRIES_MAX) -> Entries:
    """Read a map key by key, with two calls for each entry; see `map_entries`."""
    info = info or map_info(fd)
    found: dict[bytes, bytes] = {}
    key: bytes | None = None
    complete = False
    for _ in range(_STEPS_MIN + _WALKS_MAX * info.max_entries):
        key = map_next_key(fd, key, info)
        if key is None:
            complete = True
            break
        if key in found:
            continue
        if len(found) >= limit:
            break
        value = map_lookup(fd, key, info=info)
        if value is not None:  # otherwise it is gone, or is an index without a value
            found[key] = value
    return Entries(b"".join(found), b"".join(found.values()), len(found), complete)


def _batches(fd: int, info: MapInfo, limit: int) -> Entries | None:
    """Read a map by batches; return None where the map has none."""
    if info.type not in _BATCHED:
        return None
    size = info.key_bytes + info.entry_bytes
    room = min(info.max_entries, limit, max(1, _BATCH_BYTES // size))
    position: bytes | None = None
    count = 0
    keys, values = [], []
    while True:
        try:
            some_keys, some_values, after = _syscalls.bpf_map_batch(
                fd, position, info.key_bytes, info.entry_bytes, room
            )
        except OSError as error:
            code = error.errno or 0
            if code == errno.ENOSPC and room < info.max_entries:  # a bucket has more than that
                room = min(info.max_entries, 2 * room)
                continue
            if unsupported(code) and position is None:
                return None
            raise refused(code, f"cannot read BPF map {info.name}") from error
        position = after
        keys.append(some_keys)
        values.append(some_values)
        count += len(some_keys) // info.key_bytes
        complete = position is None or (info.type in _ARRAYS and count >= info.max_entries)
        if complete or count >= limit:
            return Entries(b"".join(keys), b"".join(values), count, complete)
