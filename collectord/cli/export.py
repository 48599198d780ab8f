# SPDX-License-Identifier: Apache-2.0
"""`collectord export`: the records of segments in the formats of other tools."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.cli.debug_servers import (
    USAGE,
    add_debug_servers,
    complain_of_servers,
    debug_servers,
)
from collectord.cli.new_file import check_is_new, new_file, new_open_file
from collectord.cli.output import complain
from collectord.cli.parser import Parser
from collectord.cli.query_parts import add_paths, add_scope, complain_of, database_of
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.stacks import Wishes, read_stacks, title_of, write_stacks
from collectord.cli.time_window import time_window
from collectord.cli.times import TIMES, joined
from collectord.codec.file_formats import PERF_DATA, TRACE_DAT
from collectord.reader.export_chrome import write_chrome
from collectord.reader.export_parquet import write_parquet
from collectord.reader.export_perf import write_perf_data
from collectord.reader.export_perfetto import write_perfetto
from collectord.reader.export_rows import TimeLine
from collectord.reader.export_trace import write_trace_dat
from collectord.reader.flame.forms import form_of
from collectord.reader.flame.picture import Picture
from collectord.reader.perf_tables import PerfTables
from collectord.reader.segment_tables import open_catalogue
from collectord.reader.symbols.sample_names import names_of
from collectord.reader.symbols.symbol_cache import user_cache
from collectord.reader.trace_tables import TraceTables
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean
from collectord.text.wording import counted

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from collectord.reader.event_file import EventFile, Window
    from collectord.reader.event_tables import TableScan
    from collectord.reader.export_cut import CutFiles
    from collectord.reader.export_rows import NamesOf
    from collectord.reader.segment_tables import Catalogue
    from collectord.reader.symbols.debuginfod import Debuginfod


class _Cut(NamedTuple):
    """The files that have a format, and what writes one."""

    files: type[EventFile]
    write: Callable[
        [Sequence[EventFile], Window, int], CutFiles[PerfTables] | CutFiles[TraceTables]
    ]


_PERFETTO: Final = "perfetto"
_CHROME_JSON: Final = "chrome-json"
_PARQUET: Final = "parquet"
# Those that `flame` writes, and those that records are cut out of.
_FORMS: Final = {"folded": form_of(".folded"), "pprof": form_of(".pprof")}
_CUTS: Final = {
    PERF_DATA: _Cut(PerfTables, write_perf_data),
    TRACE_DAT: _Cut(TraceTables, write_trace_dat),
}
_DEFAULT_OUTPUTS: Final = {
    _PERFETTO: "export.pftrace",
    _CHROME_JSON: "export.json",
    _PARQUET: "export-parquet",
    **{form: f"export.{form}" for form in (*_CUTS, *_FORMS)},
}


def parser() -> Parser:
    """Return the parser of `export`."""
    made = Parser(
        "export",
        (
            "[--format FORMAT]",
            "[-o PATH]",
            "[--since TIME]",
            "[--until TIME]",
            "[--session NAME]",
            USAGE,
            "[DIR|FILE...]",
        ),
        (
            "collectord export --since -2m -o host.pftrace",
            "collectord export --format chrome-json -o out.json out",
            "collectord export --format parquet -o minute --since 10:00 --until 10:01",
            "collectord export --format perf.data --session calls --since -30s",
        ),
    )
    add_paths(made, "targets")
    made.add_argument(
        "--format",
        choices=_DEFAULT_OUTPUTS,
        default=_PERFETTO,
        help="perfetto: a trace for ui.perfetto.dev; chrome-json: Chrome's Trace Event Format, "
        "which many viewers read; parquet: a directory with a file for each event; perf.data, "
        "trace.dat: the records of the perf.data or trace.dat files among those that are read; "
        "folded, pprof: what `flame` writes (default: perfetto)",
    )
    made.add_argument(
        *("-o", "--output"),
        metavar="PATH",
        type=Path,
        help="the file or, for parquet, the directory to write, which must not exist (default: "
        f"{', '.join(_DEFAULT_OUTPUTS.values())}, by the format)",
    )
    add_scope(made)
    add_debug_servers(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Write one export; return 1 if something could not be read."""
    args = parser().parse_args(joined(arguments, TIMES))
    targets = args.targets or [STATE_DIRECTORY]
    output = args.output or Path(_DEFAULT_OUTPUTS[args.format])
    window = time_window(args.since, args.until)
    nameless = "" if args.format in {_PERFETTO, *_FORMS} else f"--format {args.format}"
    servers = debug_servers(args, "export", nameless)
    if args.format in _FORMS:
        return _export_stacks(targets, window, args, servers, output)
    with ExitStack() as stack:
        catalogue = open_catalogue(targets, stack, session=args.session, nearest=did_you_mean)
        if args.format in _CUTS:
            return _export_cut(catalogue, window, args.format, output)
        scans: Sequence[TableScan]
        if args.format == _PARQUET:
            database = database_of(catalogue, args, stack)
            count = write_parquet(catalogue.tables, database, output)
            scans = database.scans
        else:
            line = TimeLine(catalogue.files, catalogue.tables, window, did_you_mean, stack)
            with new_file(output) as write:
                if args.format == _CHROME_JSON:
                    count = write_chrome(line, write)
                else:
                    count = write_perfetto(line, write, _names(servers))
            scans = line.scans
        _say(counted(count, "record"), output)
        complain_of_servers(servers)
        _complain_of_clocks(catalogue)
        return complain_of(catalogue, scans)


def _export_stacks(
    targets: Sequence[Path],
    window: Window,
    args: Namespace,
    servers: Debuginfod | None,
    output: Path,
) -> int:
    """Write the file that `flame` writes of the same samples."""
    check_is_new(output)
    wishes = Wishes(args.session, servers=servers)
    found = read_stacks(targets, window, wishes)
    complain_of_servers(servers)
    picture = Picture(title_of(targets, wishes), found.profile.unit, found.profile.stacks)
    with new_file(output) as write:
        write_stacks(picture, _FORMS[args.format], write)
    _say(f"{picture.total:,} {picture.unit}", output)
    return found.status


def _export_cut(catalogue: Catalogue, window: Window, form: str, output: Path) -> int:
    """Write a file of the same format as some of those that are read."""
    of_form = _CUTS[form]
    others = [file for file in catalogue.files if not isinstance(file, of_form.files)]
    with new_open_file(output) as file:
        chosen = of_form.write(catalogue.files, window, file.fileno())
    _say(counted(chosen.records, "record"), output)
    if others:
        complain(
            f"{len(others)} files that are not {form} were left out; the first is {others[0].path}"
        )
    if chosen.without_aux:
        complain(
            f"data of AUX areas were left out of {len(chosen.without_aux)} files, such as "
            f"{chosen.without_aux[0].path}; `collectord segments aux` extracts them"
        )
    return complain_of(catalogue, [chosen])


def _say(what: str, output: Path) -> None:
    complain(f"wrote {what} to {output}")


def _names(servers: Debuginfod | None) -> NamesOf:
    return partial(names_of, cache=user_cache(servers), shown=visible)


def _complain_of_clocks(catalogue: Catalogue) -> None:
    files = dict.fromkeys(file for table in catalogue.tables.values() for file in table.files)
    timed = [file for file in files if file.clock]
    for file in files:
        if timed and not file.clock:
            complain(f"{file.path} does not tell UTC: its records may be shifted among the others")
