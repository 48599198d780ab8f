# SPDX-License-Identifier: Apache-2.0
"""Probe stage: what this host can do, as far as a configuration needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe.kernel_probe import probe
from collectord.plan import relay_source
from collectord.plan.bpf_source import program_names
from collectord.plan.source_events import pmu_names, tracepoint_patterns
from collectord.plan.trace_source import chooses, is_used
from collectord.source import bpf_host

if TYPE_CHECKING:
    from collectord.config.schema import Config
    from collectord.facts.kernel_facts import KernelFacts


def host_facts(config: Config, *, mount: bool) -> KernelFacts:
    """Probe this host for what a configuration needs to know.

    Args:
        config: what is to be planned.
        mount: mount tracefs where it is not.
    """
    names = program_names(config)
    relayed = tuple(
        name for source in relay_source.sources(config) for name in (*source.device, *source.path)
    )
    return probe(
        LinuxKernel(),
        tracepoint_patterns(config),
        mount=mount,
        ftrace=is_used(config),
        measure=chooses(config),
        bpf=bpf_host.wanted(config.bpf, names) if names else None,
        relay=relayed,
        tracing=pmu_names(config),
    )
