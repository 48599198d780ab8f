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
from collectord.source import bcc_python

if TYPE_CHECKING:
    from collectord.config.schema import BpfConfig, Config
    from collectord.facts.kernel_facts import KernelFacts, OpenerFacts
    from collectord.kernel.port import Kernel

_LOG: Final = structlog.get_logger()


def host_facts(kernel: Kernel, config: Config, *, mount: bool) -> KernelFacts:
    """Probe this host for the facts that a configuration needs.

    Args:
        kernel: of this host.
        config: the configuration to be planned.
        mount: mount tracefs if it is not mounted.
    """
    names = program_names(config)
    relayed = tuple(
        name for source in relay_source.sources(config) for name in (*source.device, *source.path)
    )
    return kernel.facts(
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


def daemon_facts(
    kernel: Kernel, config: Config, *, mount: bool, opener: OpenerFacts | None = None
) -> KernelFacts:
    """Probe this host for a daemon, and ask the configured opener for its privileges.

    Args:
        kernel: of this host.
        config: the configuration to be planned; it names the opener's socket.
        mount: see `host_facts`.
        opener: its earlier answer, which is not asked for again.
    """
    facts = host_facts(kernel, config, mount=mount)
    place = config.daemon.opener
    if opener is None and place:
        try:
            opener = kernel.opener_facts(place)
        except KernelError as error:
            _LOG.warning("opener_not_answering", error=str(error))
    return replace(facts, opener=opener)


def bpf_wanted(config: BpfConfig, names: tuple[str, ...] | None) -> BpfWanted:
    """Return what `Kernel.facts` has to check about BPF programs, and find the interpreter.

    Args:
        config: has the paths of programs, bcc and headers.
        names: programs, None for all.
    """
    candidates = (config.python,) if config.python else bcc_python.PYTHONS
    python = bcc_python.find_python(candidates)
    return BpfWanted(names, python, Path(config.programs), config.headers)
