# SPDX-License-Identifier: Apache-2.0
"""Probe stage: what this host can do, as far as a configuration needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collectord.kernel.probe.bpf_probe import BpfWanted
from collectord.kernel.probe.kernel_probe import probe
from collectord.plan import relay_source
from collectord.plan.bpf_source import program_names
from collectord.plan.source_events import pmu_names, tracepoint_patterns
from collectord.plan.trace_source import chooses, is_used
from collectord.source import bcc_client

if TYPE_CHECKING:
    from collectord.config.schema import BpfConfig, Config
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import LocalKernel


def host_facts(kernel: LocalKernel, config: Config, *, mount: bool) -> KernelFacts:
    """Probe this host for what a configuration needs to know.

    Args:
        kernel: this host's.
        config: what is to be planned.
        mount: mount tracefs where it is not.
    """
    names = program_names(config)
    relayed = tuple(
        name for source in relay_source.sources(config) for name in (*source.device, *source.path)
    )
    return probe(
        kernel,
        tracepoint_patterns(config),
        mount=mount,
        ftrace=is_used(config),
        measure=chooses(config),
        bpf=bpf_wanted(config.bpf, names) if names else None,
        relay=relayed,
        tracing=pmu_names(config),
    )


def bpf_wanted(config: BpfConfig, names: tuple[str, ...] | None) -> BpfWanted:
    """Give what `kernel_probe.probe` is to look for, of BPF programs.

    Args:
        config: where programs, bcc and headers are.
        names: programs, None for all.
    """

    def find_python() -> tuple[str, str]:
        if config.python:
            return bcc_client.find_python((config.python,))
        return bcc_client.find_python()

    return BpfWanted(names, find_python, Path(config.programs), config.headers)
