# SPDX-License-Identifier: Apache-2.0
"""`collectord ship`: sealed segments are put into an object store."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.cli import EXIT_FAILURE, EXIT_OK, daemon_config, log
from collectord.cli.output import complain, print_json, say
from collectord.cli.parser import Parser
from collectord.cli.text_table import Column, print_table
from collectord.errors import CollectordError, ConfigError, SinkError, UnsafePath
from collectord.fleet import credentials
from collectord.fleet.commit import ClockState, decode
from collectord.fleet.dry_store import DryStore
from collectord.fleet.host_labels import read_labels
from collectord.fleet.incident_files import Incidents
from collectord.fleet.pace import Pace
from collectord.fleet.pending_segments import Sealed, Target, pending
from collectord.fleet.redaction import Redaction, Rule
from collectord.fleet.shipment import Host, Shipment
from collectord.fleet.shipper import Shipper
from collectord.fleet.store import Store
from collectord.folders.walk import open_folder
from collectord.reader.symbols.symbol_cache import user_cache
from collectord.sink import ship_note
from collectord.sink.ship_note import ShipNote
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.config.schema import Config
    from collectord.kernel.port import Kernel

_MODE: Final = 0o750


def parser() -> Parser:
    """Return the parser of `ship`."""
    made = Parser(
        "ship",
        ("[--once]", "[--dry-run]", "[--store URL]", "[--config FILE]", "[--json]"),
        (
            "collectord ship --dry-run",
            "collectord ship --once --store /srv/traces",
            "collectord ship",
        ),
    )
    made.add_argument(
        "--once",
        action="store_true",
        help="ship what is pending, and exit: with 1 if something failed (default: go on)",
    )
    made.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be put, and put nothing (default: put it)",
    )
    made.add_argument(
        "--store",
        metavar="URL",
        default="",
        help="s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, file:///PATH or a folder "
        "(default: `store` in [ship])",
    )
    daemon_config.add_option(made)
    made.add_json("with --dry-run: print one JSON document (default: a table)")
    return made


class _Plan(NamedTuple):
    """The sessions to ship, and the host that they are of."""

    config: Config
    targets: list[Target]
    host: Host

    @property
    def redacted(self) -> bool:
        """Whether any session has rules: then incidents, which have all names, are cut down."""
        return any(target.redaction.rules for target in self.targets)


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Ship until SIGINT or SIGTERM, or once."""
    args = parser().parse_args(arguments)
    config = daemon_config.read(args.config).config
    log.configure(level=daemon_config.log_level(config))
    folder = _credentials()
    hashes = any(rule.how == "hash" for session in config.session for rule in session.redact)
    key = credentials.redaction_key(folder, needed=hashes)
    plan = _Plan(config, _targets(config, key), _host(config, kernel))
    if not plan.targets:
        raise ConfigError(
            "no session is shipped", key="ship", hint='ship = "columns" in a session'
        )
    if args.dry_run:
        return _show(plan, as_json=args.json)
    url = args.store or config.ship.store
    if not url:
        raise ConfigError("no store is set", key="ship.store", hint='store = "s3://BUCKET/PATH"')
    options = {**config.ship.options, **credentials.store_options(folder)}
    store = Store.open(url, options, make=True)
    _make_folder(Path(config.ship.directory))
    with _stop() as stop:
        pace = Pace(config.ship.cpu.percent / 100, config.ship.rate, stop.wait)
        shipper = Shipper(
            plan.targets,
            Path(config.ship.directory),
            Shipment(store, plan.host, pace),
            _incidents(plan, store if config.ship.incidents else None, pace),
            stop.is_set,
        )
        if not args.once:
            shipper.run(config.ship.interval / NS_PER_SECOND, stop.wait)
            return EXIT_OK
        result = shipper.ship_all()
    return EXIT_FAILURE if result.failed else EXIT_OK


def _targets(config: Config, key: bytes) -> list[Target]:
    """Return the sessions that are shipped, with their rules."""
    targets = []
    for session in config.session:
        if session.ship == "none":
            continue
        rules = [Rule(one.column, one.table, one.how, one.keep) for one in session.redact]
        targets.append(
            Target(
                session=session.name,
                directory=Path(config.directory_of(session)),
                rule=session.ship,
                by_incident=session.ship_sample == "incidents",
                redaction=Redaction(rules, key),
            )
        )
    return targets


def _incidents(plan: _Plan, store: Store | DryStore | None, pace: Pace) -> Incidents:
    root = Path(plan.config.daemon.state_dir)
    return Incidents(root, store, plan.host.name, pace, redacted=plan.redacted)


def _host(config: Config, kernel: Kernel) -> Host:
    def clock() -> ClockState | None:
        found = kernel.clock_discipline()
        return None if found is None else ClockState(at_ns=time.time_ns(), **found._asdict())

    return Host(
        clock=clock,
        name=config.ship.host or socket.gethostname(),
        labels=read_labels(Path(config.ship.host_file)),
        cache=user_cache(),
    )


def _credentials() -> Path | None:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return Path(folder) if folder else None


def _make_folder(path: Path) -> None:
    try:
        open_folder(path, make_mode=_MODE).close()
    except (OSError, UnsafePath) as error:
        raise SinkError(
            "cannot make the folder of the note of what was shipped",
            path=str(path),
            errno=error.errno or 0,
            hint="`directory` in [ship] names it",
        ) from error


@contextmanager
def _stop() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, lambda *_: stop.set())
            stack.callback(signal.signal, number, before)
        yield stop


def _show(plan: _Plan, *, as_json: bool) -> int:
    """Print what would be put."""
    store = DryStore()
    pace = Pace(0, 0, lambda _: None)
    shipment = Shipment(store, plan.host, pace)
    incidents = _incidents(plan, store if plan.config.ship.incidents else None, pace)
    note = ship_note.read(Path(plan.config.ship.directory)) or ShipNote(written_ns=0)
    failed = False
    rows: dict[str, int] = {}
    for target in plan.targets:
        for found in pending(target, note):
            try:
                if not isinstance(found, Sealed):
                    complain(found.reason)
                    continue
                with_rows = incidents.is_wanted(target, found) is True
                put = shipment.ship(target, found, None, with_rows=with_rows)
                data = store.get(put.previous.key, 0)
                rows |= {one.key: one.rows for one in decode(data, put.previous.key).objects}
            except CollectordError as error:
                complain(str(error))
                failed = True
    for name in incidents.pending(note.incidents):
        incidents.ship(name)
    if as_json:
        print_json(
            {
                "objects": [
                    {
                        "key": one.key,
                        "bytes": one.bytes,
                        "rows": rows.get(one.key, 0),
                        "columns": list(one.columns),
                    }
                    for one in store.objects
                ]
            }
        )
    else:
        _print(store, rows)
    return EXIT_FAILURE if failed else EXIT_OK


def _print(store: DryStore, rows: dict[str, int]) -> None:
    columns = (Column("BYTES", "right"), Column("ROWS", "right"), Column("OBJECT"))
    print_table(
        columns,
        [[f"{one.bytes:,}", f"{rows.get(one.key, 0):,}", one.key] for one in store.objects],
    )
    total = sum(one.bytes for one in store.objects)
    say(f"{len(store.objects):,} objects, {total:,} bytes would be put")
