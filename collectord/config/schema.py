# SPDX-License-Identifier: Apache-2.0
"""Every key of the configuration and its default; config/collectord.toml explains them.

`collectord run` reads these from files, `collectord record` builds them from its options: from
here on both are treated alike.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

import msgspec

from collectord.config.decode import Spelt, optional
from collectord.config.listen_address import ListenAddress
from collectord.config.scheduling import DrainCpus, DrainPriority
from collectord.config.schema_session import SessionConfig  # noqa: TC001 - decode reads annotations
from collectord.config.schema_trigger import TriggerConfig  # noqa: TC001 - likewise
from collectord.config.users import group_id
from collectord.model import CONTROL_SOCKET
from collectord.text.units import KIB, MIB, NS_PER_SECOND, Bytes, Least, Nanoseconds, Share

# A file spells them as strings.
Address = Annotated[ListenAddress | None, Spelt(optional(ListenAddress.parse))]
Group = Annotated[int | None, Spelt(optional(group_id))]

_GIB: Final = 1 << 30


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[daemon]`: the process, its threads and its memory."""

    state_dir: str = "/var/lib/collectord"
    shards: int = 0
    staging: Bytes = Bytes(64 * MIB)
    chunk: Bytes = Bytes(MIB)
    flush_interval: Nanoseconds = Nanoseconds(NS_PER_SECOND)
    heartbeat: Nanoseconds = Nanoseconds(60 * NS_PER_SECOND)
    floor: Bytes = Bytes(64 * KIB)
    memory: Bytes = Bytes(0)
    opener: str = ""
    budget: Share = Share(percent=0.5)
    budget_pauses: Literal["none", "spare", "normal"] = "spare"
    drain_priority: DrainPriority = DrainPriority()
    drain_cpus: DrainCpus = DrainCpus()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[metrics]`: the Prometheus endpoint."""

    listen: Address = ListenAddress("127.0.0.1", 9590)
    per_cpu: bool = False
    incidents: Literal["none", "local", "all"] = "local"


class ControlConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[control]`: the Unix socket, and limits of the sessions that its users may start."""

    socket: str = CONTROL_SOCKET
    admin_group: Group = None
    max_sessions: int = 0
    max_duration: Nanoseconds = Nanoseconds(600 * NS_PER_SECOND)
    max_bytes: Bytes = Bytes(_GIB)
    max_memory: Bytes = Bytes(256 * MIB)
    session_kinds: tuple[Literal["perf", "tracefs", "bpf"], ...] = ("perf", "tracefs")


class RetentionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[retention]`: limits of the state directory over all sessions; 0 for none."""

    bytes: Least = Least(bytes=2 * _GIB, percent=5.0)
    age: Nanoseconds = Nanoseconds(7 * 86_400 * NS_PER_SECOND)
    free: Share = Share(percent=10.0)
    compress_after: Nanoseconds = Nanoseconds(3600 * NS_PER_SECOND)


class IncidentsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[incidents]`: limits of the incidents that are kept; 0 for none."""

    keep: int = 50
    bytes: Bytes = Bytes(_GIB)
    age: Nanoseconds = Nanoseconds(30 * 86_400 * NS_PER_SECOND)


class ShipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[ship]`: the object store that `collectord ship` puts segments into, and its limits."""

    store: str = ""
    options: dict[str, str] = {}
    host: str = ""
    host_file: str = "/etc/collectord/host.toml"
    directory: str = "/var/lib/collectord-ship"
    interval: Nanoseconds = Nanoseconds(10 * NS_PER_SECOND)
    cpu: Share = Share(percent=10.0)
    rate: Bytes = Bytes(8 * MIB)
    incidents: bool = False
    hold: Bytes = Bytes(2 * _GIB)
    hold_age: Nanoseconds = Nanoseconds(86_400 * NS_PER_SECOND)


class AlertmanagerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[alertmanager]`: the listener for notifications about alerts, which wants certificates."""

    listen: Address = None
    certificate: str = ""
    key: str = ""
    client_ca: str = ""


class BpfConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[bpf]`: places of programs, and limits of compiling them."""

    programs: str = "/etc/collectord/bpf"
    python: str = ""
    headers: str = ""
    cache: str = ""
    compile_time: Nanoseconds = Nanoseconds(60 * NS_PER_SECOND)
    compile_memory: Bytes = Bytes(_GIB)
    stats: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration."""

    daemon: DaemonConfig = DaemonConfig()
    metrics: MetricsConfig = MetricsConfig()
    control: ControlConfig = ControlConfig()
    retention: RetentionConfig = RetentionConfig()
    incidents: IncidentsConfig = IncidentsConfig()
    ship: ShipConfig = ShipConfig()
    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    bpf: BpfConfig = BpfConfig()
    session: tuple[SessionConfig, ...] = ()
    trigger: tuple[TriggerConfig, ...] = ()

    def directory_of(self, session: SessionConfig) -> str:
        """Return the folder of a session's segments."""
        return session.directory or str(PurePosixPath(self.daemon.state_dir, session.name))
