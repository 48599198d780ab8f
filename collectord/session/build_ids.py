# SPDX-License-Identifier: Apache-2.0
"""Build-ids of the code that a session's mappings name.

They are read here and not requested from the kernel with each mapping (see
`plan.event_attrs.sideband_event`): once for each file, soon after it was mapped, while its process
or its name still leads to it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from collectord.codec.perf_features import BuildId, Features
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_sideband import Mmap2, decode

if TYPE_CHECKING:
    from collectord._native import _core
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.kernel.port import Kernel
    from collectord.session.task_group import TaskGroup

# Device major and minor, inode, file name. The inode's generation is unknown.
_File = tuple[int, int, int, bytes]


class BuildIds:
    """The build-ids of the files that one stream saw mapped.

    Args:
        kernel: reads the build-ids.
        stream: lists the files.
        attr: of the event that recorded the mappings; None for a stream without such an event.
    """

    def __init__(self, kernel: Kernel, stream: _core.Stream, attr: PerfEventAttr | None) -> None:
        self._kernel = kernel
        self._stream = stream
        self._attr = attr
        self._since = 0
        self._known: dict[_File, bytes] = {}
        self._files: dict[bytes, _File] = {}  # by the mapping records; all files in it are known
        self._lock = threading.Lock()

    def poll(self, tasks: TaskGroup) -> None:
        """Start to read the build-ids of files that were mapped since the last poll."""
        self._since, records = self._stream.mapped_files(self._since)
        if records:
            tasks.start(tasks.in_worker(self._read, records))

    def features(self) -> Features:
        """Return the build-ids of the code that ran in a segment. Called in a thread.

        If several files have one name, the one that the name leads to here counts, as in perf
        record, or else the last one whose build-id is known.
        """
        with self._lock:
            _, records = self._stream.mapped_files()
            self._files = self._learn(records)
            files = list(dict.fromkeys(self._files.values()))
            self._known = {file: self._known[file] for file in files}
            if not files:
                return Features()
            # Readers know a file by its name. Processes with another root see other files there.
            found: dict[bytes, _File] = {}
            for file in filter(self._known.get, files):
                if not self._is_here(found.get(file[-1])):
                    found[file[-1]] = file
            mapped = [BuildId(os.fsdecode(n), self._known[file]) for n, file in found.items()]
        return Features(build_ids=(*self._kernel.kernel_build_ids(), *mapped))

    def _is_here(self, file: _File | None) -> bool:
        return file is not None and self._kernel.inode_at(file[-1]) == file[2]

    def _read(self, records: bytes) -> None:
        with self._lock:
            self._files |= self._learn(records)

    def _learn(self, records: bytes) -> dict[bytes, _File]:
        """Read the build-ids of the records' files; records seen before are not decoded again."""
        files: dict[bytes, _File] = {}
        new: dict[_File, Mmap2] = {}
        if self._attr is None:
            return files
        for header in iter_records(records):
            record = records[header.offset : header.offset + header.size]
            file = self._files.get(record)
            if file is None:
                mapping = decode(records, header, self._attr)
                if not isinstance(mapping, Mmap2):
                    continue
                file = (mapping.major, mapping.minor, mapping.inode, mapping.filename)
                if file not in self._known:
                    new[file] = mapping
            files[record] = file
        self._known |= zip(new, self._kernel.mapped_build_ids(tuple(new.values())), strict=True)
        return files
