# SPDX-License-Identifier: Apache-2.0
"""A reader of Arrow streams that looks at nothing: what is left is the time of the decoder."""

from __future__ import annotations

import ctypes
from typing import Any, Final


class _Array(ctypes.Structure):
    """`struct ArrowArray` of the C data interface."""


_Array._fields_ = (
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset")),
    *((name, ctypes.c_int64) for name in ("n_buffers", "n_children")),
    *((name, ctypes.c_void_p) for name in ("buffers", "children", "dictionary")),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
)


class _Stream(ctypes.Structure):
    """`struct ArrowArrayStream`."""


_Stream._fields_ = (
    ("get_schema", ctypes.c_void_p),
    (
        "get_next",
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array)),
    ),
    ("get_last_error", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
)
_POINTER: Final = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype = ctypes.c_void_p
_POINTER.argtypes = (ctypes.py_object, ctypes.c_char_p)


def drain(table: Any) -> int:  # noqa: ANN401  # whatever has a stream
    """Read all batches of a table, and return its rows."""
    capsule = table.__arrow_c_stream__()
    stream = _Stream.from_address(_POINTER(capsule, b"arrow_array_stream"))
    rows = 0
    while True:
        batch = _Array()
        status = stream.get_next(ctypes.byref(stream), ctypes.byref(batch))
        if status:
            raise OSError(status, "the stream has ended")
        if not batch.release:
            return rows
        rows += batch.length
        batch.release(ctypes.byref(batch))
