# SPDX-License-Identifier: Apache-2.0
"""Probe stage: the abilities of this host, as far as a configuration needs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.kernel.values.facts_wanted import BpfWanted, FactsWanted
from collectord.plan import relay_source
from collectord.plan.bpf_source import program_names
from collectord.plan.source_events import pmu_names, tracepoint_patterns
from collectord.plan.trace_source import chooses, is_used
from collectord.source import bcc_client

if TYPE_CHECKING:
    from collectord.config.schema import BpfConfig, Config
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel

_LOG: Final = structlog.get_logger()


def host_facts(
    kernel: Kernel, config: Config, *, mount: bool, is_opener: bool = False
) -> KernelFacts:
    """Probe this host for the facts that a configuration needs.

    Args:
        kernel: of this host.
        config: the configuration to be planned.
        mount: mount tracefs if it is not mounted.
        is_opener: this is the opener itself; others ask it what it may open.
    """
    names = program_names(config)
    relayed = tuple(
        name for source in relay_source.sources(config) for name in (*source.device, *source.path)
    )
    facts = kernel.facts(
        FactsWanted(
            tuple(tracepoint_patterns(config)),
            mount=mount,
            ftrace=is_used(config),
            measure=chooses(config),
            bpf=bpf_wanted(config.bpf, names) if names else None,
            relay=relayed,
            tracing=tuple(pmu_names(config)),
        )
    )
    if is_opener or not config.daemon.opener:
        return facts
    try:
        return replace(facts, opener=kernel.opener_facts(config.daemon.opener))
    except KernelError as error:
        _LOG.warning("opener_not_asked", error=str(error))
        return facts


def bpf_wanted(config: BpfConfig, names: tuple[str, ...] | None) -> BpfWanted:
    """Return what `Kernel.facts` has to check about BPF programs, and find the interpreter.

    Args:
        config: has the paths of programs, bcc and headers.
        names: programs, None for all.
    """
    candidates = (config.python,) if config.python else bcc_client.PYTHONS
    python = bcc_client.find_python(candidates)
    return BpfWanted(names, python, Path(config.programs), config.headers)
