# SPDX-License-Identifier: Apache-2.0
"""Metric families of the daemon on its host: versions, CPUs, and what earlier runs left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord import __version__
from collectord.metrics.families import SESSION, counter, gauge
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Reading


def families(reading: Reading) -> Iterator[Metric]:
    """Yield the families about versions, CPUs, and what earlier runs left."""
    status = reading.status
    yield gauge(
        "collectord_build_info",
        "Always 1; the labels have the versions of collectord and of the kernel.",
        ("version", "kernel"),
        [((__version__, reading.kernel_release), 1)],
    )
    yield gauge(
        "collectord_config_info",
        "Always 1; the label has the SHA-256 of the configuration files, one after the other.",
        ("sha256",),
        [((status.config_sha256,), 1)],
    )
    yield gauge(
        "collectord_config_last_reload_successful",
        "1 if the last reload of the configuration succeeded, 0 if it changed nothing.",
        (),
        [((), status.reload.successful)],
    )
    yield gauge(
        "collectord_config_last_reload_success_timestamp_seconds",
        "Unix time of the last successful reload of the configuration, or of the start.",
        (),
        [((), status.reload.succeeded_ns / NS_PER_SECOND)],
    )
    yield gauge("collectord_cpus_online", "Number of online CPUs.", (), [((), status.cpus_online)])
    yield gauge(
        "collectord_cpus_covered",
        "Number of online CPUs on which every per-CPU session has its rings.",
        (),
        [((), status.cpus_covered)],
    )
    yield counter(
        "collectord_uncovered_seconds",
        "Seconds that planned CPUs were offline or without rings, summed over the CPUs.",
        (),
        [((), status.uncovered_ns / NS_PER_SECOND)],
    )
    yield counter(
        "collectord_session_uncovered_seconds",
        "Seconds that CPUs were offline or without rings of the session, summed over the CPUs.",
        SESSION,
        [(labels, ns / NS_PER_SECOND) for labels, ns in status.uncovered_by_session.items()],
    )
    yield counter(
        "collectord_unclean_stops",
        "Earlier runs that ended without sealing their segments.",
        (),
        [((), status.unclean_stops)],
    )
    yield counter(
        "collectord_records_left_behind",
        "Records of block traces that were lost because a killed run had not read them, or "
        "because the ring was full afterwards.",
        (),
        [((), status.left_records)],
    )
    yield counter(
        "collectord_log_lines_dropped",
        "Lines of the log that were dropped because its reader was too slow.",
        (),
        [((), status.log_lines_dropped)],
    )
    yield gauge(
        "collectord_beginning_sessions",
        "Sessions that are wanted and do not record yet, because a program is compiled or a disk "
        "does not answer.",
        (),
        [((), len(status.beginning))],
    )
    yield gauge(
        "collectord_damaged_files",
        "Segments and manifests found damaged at the daemon's start, and left alone or set aside.",
        (),
        [((), status.damaged_files)],
    )
