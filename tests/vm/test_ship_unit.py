# SPDX-License-Identifier: Apache-2.0
"""The shipper that `make install` installs, under a real systemd: into a folder and into S3."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.control import client
from collectord.fleet.store import Store
from tests.support import daemons, object_stores
from tests.support.daemons import wait_for
from tests.support.object_stores import S3Server
from tests.support.shipping import commits_in, in_chain
from tests.vm.service import (
    CONFIG,
    CONTROL,
    SHIPPER,
    STATE,
    UNIT,
    drop_in,
    is_again,
    journal,
    scrape,
    shown,
    systemctl,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

USER: Final = "collectord-ship"
CREDENTIALS: Final = Path("/etc/collectord/credentials")
STORE: Final = Path("/srv/traces")
NOTE: Final = Path("/var/lib/collectord-ship")
CACHE: Final = Path("/var/cache/collectord-ship")
SESSION: Final = "shipped"
KEY: Final = "0123456789abcdef0123456789abcdef"
# Options that may be in the configuration; all others are credentials.
OPEN: Final = ("aws_endpoint", "aws_region", "aws_virtual_hosted_style_request")
CONFIGURED: Final = """
[ship]
store = "{url}"
options = {{ {options} }}
host = "guest"
interval = "1s"
cpu = "100%"

[[session]]
name = "shipped"
ship = "raw"

[[session.source]]
kind = "perf"
events = ["sched:sched_process_exec"]

[[session]]
name = "hashed"
ship = "columns"
redact = [{{ column = "*comm", how = "hash" }}]

[[session.source]]
kind = "perf"
events = ["sched:sched_process_exec"]
"""
SHIPPED: Final = f'collectord_shipped_segments_total{{session="{SESSION}"}}'


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    object_stores.start_runtime()


@pytest.fixture
def shipper(service: None) -> Iterator[None]:
    """Provide the packages that shipping needs, a folder as a store, and a key of hashes."""
    del service
    STORE.mkdir()
    shutil.chown(STORE, USER, "collectord")
    redact = CREDENTIALS / "redact"
    redact.touch(0o600)
    redact.write_text(KEY)
    packages = sysconfig.get_path("platlib")  # of the checkout: `make install` has no extras
    lines = f"ReadWritePaths={STORE}\nEnvironment=PYTHONPATH={packages}\nRestartSec=1\n"
    with drop_in("test", lines, SHIPPER):
        yield
        systemctl("stop", SHIPPER)
        if shown("ActiveState", unit=SHIPPER) == ("failed",):
            systemctl("reset-failed", SHIPPER)
    for file in CREDENTIALS.iterdir():
        file.unlink()
    for folder in (STORE, NOTE, CACHE):
        shutil.rmtree(folder, ignore_errors=True)


def configure(url: str, options: dict[str, str]) -> None:
    """Write what is shipped where, with the credentials in a file of root."""
    shown_options = ", ".join(f'{name} = "{options[name]}"' for name in OPEN if name in options)
    CONFIG.write_text(CONFIGURED.format(url=url, options=shown_options))
    secret = CREDENTIALS / "store"
    secret.touch(0o600)
    lines = (f"{name}={value}\n" for name, value in options.items() if name not in OPEN)
    secret.write_text("".join(lines))


def seal(count: int) -> None:
    """Seal so many segments of each session, with an exec in each."""
    for _ in range(count):
        subprocess.run(["true"], check=True)
        client.post(CONTROL, "/v1/rotate", {"sessions": [SESSION, "hashed"]})


def sealed() -> list[Path]:
    """Return the sealed segments of the session."""
    return daemons.sealed(STATE / SESSION)


def told() -> str:
    """Return the last lines of the shipper in the journal."""
    return journal(f"--unit={SHIPPER}", "--lines=40")


def check(store: Store) -> None:
    """Wait until each segment is in a store, and check that it is there once and as it is here."""
    segments = {path.name: path for path in sealed()}
    assert len(segments) > 2

    def there() -> bool:
        found = [one.segment for one in commits_in(store).values() if one.session == SESSION]
        return len(found) >= len(segments)

    try:
        wait_for(there, "all segments in the store")
    except AssertionError as error:
        raise AssertionError(told()) from error
    found = commits_in(store)
    mine = {key: one for key, one in found.items() if one.session == SESSION}
    assert sorted(one.segment for one in mine.values()) == sorted(segments)
    in_chain(store, mine)
    rows = 0
    for one in mine.values():
        (raw,) = (stored for stored in one.objects if not stored.event)
        assert store.get(raw.key, 1 << 30) == segments[one.segment].read_bytes()
        rows += sum(stored.rows for stored in one.objects if stored.event == "sched_process_exec")
    assert rows == sum(daemons.manifest(path)["samples"] for path in segments.values()) > 0
    named = {stored.key for one in found.values() for stored in one.objects}
    wait_for(
        lambda: (
            {info.key for info in store.objects("raw")} <= named
            and len([one for one in commits_in(store).values() if one.redacted])
            >= len(segments) - 1
        ),
        "the session with hashes",
    )


@pytest.mark.usefixtures("shipper")
def test_the_shipper_puts_each_segment_once() -> None:
    """Without a privilege, by its own user; a kill costs nothing, and doubles nothing."""
    configure(str(STORE), {})
    systemctl("start", UNIT)
    seal(4)
    systemctl("start", SHIPPER)
    (pid,) = shown("MainPID", unit=SHIPPER)
    process = Path("/proc") / pid
    assert (process.owner(), process.group()) == (USER, "collectord")
    status = (process / "status").read_text()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t{0:016x}\n" in status
    assert "NoNewPrivs:\t1\n" in status

    # It is killed behind the first commit, where it has begun the next segment.
    store = Store.open(str(STORE))
    try:
        wait_for(lambda: commits_in(store), "the first commit")
    except AssertionError as error:
        raise AssertionError(told()) from error
    systemctl("kill", "--kill-whom=main", "--signal=KILL", SHIPPER)
    seal(2)
    wait_for(lambda: is_again(SHIPPER), "a restart of the shipper")
    assert shown("MainPID", unit=SHIPPER) != (pid,)
    check(store)

    # The daemon reads the note; nobody else can write it, or read the credentials.
    count = len(sealed())
    wait_for(lambda: scrape().value(SHIPPED) == count, "the figures of the daemon")
    assert (NOTE.owner(), NOTE.group(), NOTE.stat().st_mode & 0o777) == (USER, "collectord", 0o750)
    assert (CREDENTIALS.owner(), CREDENTIALS.stat().st_mode & 0o777) == ("root", 0o700)
    systemctl("stop", SHIPPER)
    assert shown("Result", "ExecMainStatus", unit=SHIPPER) == ("success", "0"), told()
    systemctl("stop", UNIT)


@pytest.mark.usefixtures("shipper")
def test_the_shipper_has_the_credentials_of_a_store() -> None:
    """It puts the segments into an S3 server, with the keys that systemd hands it."""
    with S3Server() as server:
        options = server.options()
        url = server.new_bucket()
        configure(url, options)
        systemctl("start", UNIT)
        seal(3)
        systemctl("start", SHIPPER)
        check(Store.open(url, options))
        systemctl("stop", SHIPPER)
        lines = [json.loads(line) for line in told().splitlines() if line.startswith("{")]
        assert not [line for line in lines if options["aws_secret_access_key"] in str(line)]
    systemctl("stop", UNIT)
