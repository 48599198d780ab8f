# SPDX-License-Identifier: Apache-2.0
"""Reloads: the configuration is read anew, and what differs from the running plan is changed.

One reload follows another; those who ask while one is under way share the next. A reload that
fails changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.config.schema_session import BpfSourceConfig
from collectord.daemon.host_facts import daemon_facts
from collectord.errors import BpfError, CollectordError, PlanError, UsageError
from collectord.plan.build import build
from collectord.plan.difference import Kind, difference, document
from collectord.plan.session_draft import has_stand_in
from collectord.plan.settings import settings_of, taken_over
from collectord.session.daemon_status import ReloadStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.config.load import Loaded
    from collectord.config.schema import Config
    from collectord.control.service import Service
    from collectord.daemon.changeover import Changeover
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.plan.difference import Difference
    from collectord.plan.plan import Plan
    from collectord.session.opening_thread import OpeningThread
    from collectord.session.session_factory import AnySession

    Read = Callable[[], Loaded]

_LOG: Final = structlog.get_logger()


class Reloaded(NamedTuple):
    """The result of a reload: what was changed, and the warnings of the plan that runs now."""

    found: Difference
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of a daemon that a reload works on, while it collects.

    Attributes:
        changeover: changes the sessions.
        opening: reads, probes and plans.
        service: is told.
        apply: takes over the settings of a configuration, and its plan.
    """

    changeover: Changeover
    opening: OpeningThread
    service: Service
    apply: Callable[[Config, Plan], None]


class Reloader:
    """Keeps a daemon's plan, and changes it.

    Args:
        kernel: is probed.
        loaded: the configuration of the start.
        facts: of the start.
        plan: made of both.
        read: reads the configuration anew.

    Attributes:
        plan: what runs.
        config_sha256: of the files that it is made of.
        status: of the last reload.
    """

    def __init__(
        self, kernel: Kernel, loaded: Loaded, facts: KernelFacts, plan: Plan, read: Read
    ) -> None:
        self._kernel = kernel
        self._facts = facts
        self._read = read
        self._config = loaded.config
        self.plan = plan
        self.config_sha256 = loaded.sha256
        self.status = ReloadStatus()
        self._running: Running  # from `begin` on
        self._begun = asyncio.Event()
        self._ended = False
        self._one = asyncio.Lock()
        self._next: asyncio.Task[Reloaded] | None = None
        self._tasks: set[asyncio.Task[Reloaded]] = set()

    def begin(self, running: Running) -> None:
        """Carry out reloads from now on, those included that were asked for before."""
        self._running = running
        self._begun.set()

    async def reload(self) -> Reloaded:
        """Read, plan, and change what differs; before all is open, as soon as it is.

        Raises:
            ConfigError, PlanError: the configuration is wrong.
            CollectordError: what it wants cannot be opened.
            UsageError: the daemon stops.
        """
        if self._ended:
            raise _stopping()
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        task = self._next
        await asyncio.wait([task])  # it goes on if the one who asked has left
        if task.cancelled():
            raise _stopping()
        return task.result()

    def stop(self) -> None:
        """Give up what is not decided yet."""
        self._ended = True
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Stop, and wait until what was under way is given up."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def stand_in(
        self, sessions: Iterable[AnySession], changeover: Changeover, opening: OpeningThread
    ) -> None:
        """Plan without BPF programs that could not be loaded, so that others stand in for them.

        Args:
            sessions: those of the start.
            changeover: changes the sessions.
            opening: plans.
        """
        programs = _replaceable(self._config, sessions)
        if not programs:
            return
        facts = replace(self._facts, bpf=replace(self._facts.bpf, failed_programs=programs))
        async with self._one:
            try:
                plan = await opening.run(partial(build, self._config, facts))
                found = difference(document(self.plan), document(plan))
                await changeover.change(self.plan, self._config, plan, found)
            except CollectordError as error:
                _LOG.error("stand_in_failed", error=str(error))  # what failed stays, and says why
                return
        self._facts, self.plan = facts, plan
        _LOG.warning("stood_in_for", programs=sorted(programs))

    async def _run(self) -> Reloaded:
        await self._begun.wait()
        running = self._running
        async with self._one:
            self._next = None  # files may be written from now on
            running.service.reloading()
            try:
                done = await self._reload(running)
            except CollectordError as error:
                self.status = replace(self.status, successful=False)
                text = error.text if isinstance(error, BpfError) else ""
                _LOG.error("config_not_applied", error=str(error), text=text)
                raise
            finally:
                running.service.reloaded()
        self.status = ReloadStatus()
        found = done.found
        counts = {str(kind): len(found.of(kind)) for kind in Kind}
        _LOG.info("reloaded", **counts, needs_restart=list(found.needs_restart))
        return done

    async def _reload(self, running: Running) -> Reloaded:
        loaded, config, facts, plan = await running.opening.run(self._plan_anew)
        # Those that wait for a restart are not in the plan.
        wanted = replace(plan, settings=settings_of(loaded.config))
        found = difference(document(self.plan), document(wanted))
        present = await running.opening.run(partial(self._present, config, facts, plan))
        await running.changeover.change(self.plan, config, present, found)
        self._config, self._facts = config, facts
        self.plan, self.config_sha256 = plan, loaded.sha256
        running.apply(config, plan)
        return Reloaded(found, plan.warnings)

    def _plan_anew(self) -> tuple[Loaded, Config, KernelFacts, Plan]:
        """Read the files, look at the host and plan; called in a thread."""
        loaded = self._read()
        config = taken_over(self._config, loaded.config)
        before = self._facts
        facts = daemon_facts(self._kernel, config, mount=True, opener=before.opener)
        facts = _kept(facts, before)
        return loaded, config, facts, build(config, facts)

    def present(self) -> Plan:
        """Return the plan for the CPUs that are online now; called in a thread.

        Plans are compared by the CPUs that were online when the process began. A session that is
        opened lacks those of them that are not any more, and gets their rings when they are back,
        as all others do.
        """
        return self._present(self._config, self._facts, self.plan)

    def _present(self, config: Config, facts: KernelFacts, plan: Plan) -> Plan:
        online = self._kernel.online_cpus()
        present = tuple(cpu for cpu in facts.cpus_online if cpu in online)
        if present == facts.cpus_online:
            return plan
        try:
            return build(config, replace(facts, cpus_online=present))
        except PlanError:  # a session names a CPU that is offline: it may be one that stays
            return plan


def _replaceable(config: Config, sessions: Iterable[AnySession]) -> dict[str, str]:
    """Return why BPF programs could not be loaded, by name, that others can stand in for."""
    reasons = {
        session.plan.name: "; ".join(session.balance().degraded_reasons)
        for session in sessions
        if session.state == "failed" and session.plan.kind == BpfSourceConfig.kind
    }
    return {
        source.program: reasons[session.name]
        for session in config.session
        if session.name in reasons and has_stand_in(session)
        for source in session.source
        if isinstance(source, BpfSourceConfig)
    }


def _kept(facts: KernelFacts, before: KernelFacts) -> KernelFacts:
    """Return facts without those that sessions disturb which record already.

    Args:
        facts: of a look at the host beside the sessions.
        before: as of when they were planned.
    """
    # A new measurement could choose another transport for what records.
    costs = before.ftrace.transport_ns or facts.ftrace.transport_ns
    return replace(
        facts.with_areas_of(before),
        ftrace=replace(facts.ftrace, transport_ns=costs),
        bpf=replace(facts.bpf, failed_programs=before.bpf.failed_programs),
        # The sessions follow CPUs that come and go by themselves.
        cpus_online=before.cpus_online,
    )


def _stopping() -> UsageError:
    return UsageError("the daemon stops: nothing is reloaded")
