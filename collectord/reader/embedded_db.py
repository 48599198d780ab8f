# SPDX-License-Identifier: Apache-2.0
"""The embedded database, DuckDB: one that opens nothing but what it is given, and its errors."""

from __future__ import annotations

import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.errors import CollectordError, MissingFeature, UsageError, install_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from types import ModuleType

_MEMORY: Final = "256MB"
_QUOTE: Final = "'"
_SETTINGS: Final = (
    "SET python_enable_replacements = false",
    "SET autoload_known_extensions = false",
    "SET autoinstall_known_extensions = false",
)
_LOCKS: Final = ("SET enable_external_access = false", "SET lock_configuration = true")
_FLAGS: Final = re.compile(r"(?m)^flags\s*:(.*)$")
_PROCESSOR_BYTES: Final = 16 << 10  # the first processor's part of /proc/cpuinfo, and more


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    return _QUOTE + text.replace(_QUOTE, _QUOTE * 2) + _QUOTE


def connect(
    stack: ExitStack,
    written: str | None = None,
    *,
    folder: str | None = None,
    files: Any = None,  # noqa: ANN401  # of fsspec
    memory: str = _MEMORY,
    threads: int = 0,
) -> Any:  # noqa: ANN401  # of DuckDB
    """Return a database in memory that opens no file but those that are named.

    Args:
        stack: the database ends with it.
        written: path of the one file that may be written.
        folder: path of a folder whose files may be written and read.
        files: a file system of fsspec whose files may be read.
        memory: the most that it takes.
        threads: that it may use, 0 for one on each CPU.

    Raises:
        CollectordError: DuckDB is not installed.
        MissingFeature: it is made for another processor.
    """
    duckdb = load_duckdb()
    temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="collectord-"))
    with DatabaseErrors(duckdb):
        connection = duckdb.connect(":memory:")
        stack.callback(connection.close)
        for setting in _SETTINGS:
            connection.execute(setting)
        connection.execute("SET memory_limit = ?", [memory])
        connection.execute("SET temp_directory = ?", [temporary])
        if written is not None:
            connection.execute("SET allowed_paths = ?", [[written]])
        folders = [] if folder is None else [folder]
        if files is not None:  # known before its scheme is: else that is taken for a folder here
            connection.register_filesystem(files)
            folders.append(f"{files.protocol}://")
        if folders:
            connection.execute("SET allowed_directories = ?", [folders])
        if threads:
            connection.execute("SET threads = ?", [threads])
        for setting in _LOCKS:
            connection.execute(setting)
    return connection


class DatabaseErrors:
    """Turns errors of DuckDB in a block into ours.

    Args:
        duckdb: the module.
        hint: says what to do about an error, "" if that is not known.
    """

    def __init__(self, duckdb: ModuleType, hint: Callable[[Exception], str] | None = None) -> None:
        self._duckdb = duckdb
        self._hint = hint

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise what stands for an error of DuckDB."""
        if not isinstance(error, self._duckdb.Error):
            return
        hint = self._hint(error) if self._hint is not None else ""
        # DuckDB's own suggestions are on the next line, and the statement behind an empty one.
        told = str(error).split("\n" if hint else "\n\n", 1)[0]
        message = " ".join(told.split())
        if isinstance(error, self._duckdb.OutOfMemoryException):
            raise CollectordError(
                f"the statement needs more than {_MEMORY}", hint="ask for less at a time"
            ) from error
        refused = (self._duckdb.IOException, self._duckdb.InternalException)
        if isinstance(error, refused):
            raise CollectordError(message, hint=hint) from error
        raise UsageError(message, hint=hint) from error


def dies_on(release: str, processor: str) -> bool:
    """Whether DuckDB of a version ends the process by an illegal instruction.

    The wheels of DuckDB 2 for x86-64 are compiled for AVX2.

    Args:
        release: version of the package.
        processor: the begin of /proc/cpuinfo, which has a line of flags on x86 alone.
    """
    flags = _FLAGS.search(processor)
    is_second = release.partition(".")[0] == "2"
    return is_second and flags is not None and "avx2" not in flags[1].split()


def errors_of_duckdb() -> DatabaseErrors:
    """Return a block in which errors of DuckDB become ours."""
    return DatabaseErrors(load_duckdb())


def _check_processor() -> None:
    """Raise MissingFeature where an import of DuckDB would end the process."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # heavy

    with suppress(OSError, PackageNotFoundError), Path("/proc/cpuinfo").open() as file:
        if dies_on(version("duckdb"), file.read(_PROCESSOR_BYTES)):
            raise MissingFeature(
                "DuckDB 2 needs a processor with AVX2",
                feature="AVX2",
                hint="python3 -m pip install 'duckdb<2'",
            )


def load_duckdb() -> ModuleType:
    """Return the package.

    Raises:
        CollectordError: it is not installed.
        MissingFeature: it is made for another processor.
    """
    if "duckdb" not in sys.modules:
        _check_processor()
    try:
        import duckdb  # noqa: PLC0415  # of this verb alone, and heavy
    except ImportError as error:
        hint = f"{install_command('query')}, or duckdb beside it"
        raise CollectordError("queries need DuckDB, which is not installed", hint=hint) from error
    return duckdb
