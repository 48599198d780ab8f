# SPDX-License-Identifier: Apache-2.0
"""Files that a verb writes for its user; none that exists is replaced."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from collectord.errors import UsageError
from collectord.folders.walk import open_folder
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

_HINT: Final = "name a file that does not exist"


def check_is_new(path: Path) -> None:
    """Raise UsageError if there is a file, or a link, of that name."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", hint=_HINT)


@contextmanager
def new_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes to a new file, which is removed if the block fails.

    Raises as `new_open_file`.
    """
    with new_open_file(path) as file:
        yield file.write


@contextmanager
def new_open_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which is removed if the block fails.

    Raises:
        UsageError: there is a file of that name.
        SinkError: it cannot be written.
    """
    check_is_new(path)
    with sink_errors("cannot write", path), open_folder(path.parent) as folder:
        try:
            fd = folder.create(path.name)
        except FileExistsError as error:
            raise UsageError(f"{path} exists", hint=_HINT) from error
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
        except BaseException:
            folder.discard(path.name)
            raise
