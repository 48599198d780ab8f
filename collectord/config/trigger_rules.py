# SPDX-License-Identifier: Apache-2.0
"""Rules for triggers, and for the incidents that they make."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from collectord.config.problems import ANSWER_NAME, Problem, under
from collectord.model import FLIGHT_RECORDER
from collectord.text.nearest import did_you_mean
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema import AlertmanagerConfig, Config, IncidentsConfig
    from collectord.config.schema_trigger import TriggerConfig

# A name is a part of a directory's name, and a label of metrics.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
_OWN_NAMES: Final = ("manual", "signal")
_DELAY_MAX_NS: Final = 600 * NS_PER_SECOND
_PER_DAY_MAX: Final = 1000
_TRIGGERS_MAX: Final = 32
_ANSWERS_MAX: Final = 8
# Keys that one kind alone has, with what stands for no value.
_KEYS: Final = {"pressure": "pressure", "unit": "unit", "labels": "alert"}
_SESSIONS: Final = frozenset({"loss", "ring-fill", "freeze", "event"})
_OF_ONE_SESSION: Final = {"freeze": "one with freeze_on", "event": "one that records the event"}


def check_triggers(config: Config) -> Iterator[Problem]:
    """Yield problems of the triggers of one file, or of all."""
    yield from under("incidents", _incidents(config.incidents))
    yield from under("alertmanager", _alertmanager(config.alertmanager))
    if len(config.trigger) > _TRIGGERS_MAX:
        yield Problem("trigger", f"{len(config.trigger)} triggers", f"at most {_TRIGGERS_MAX}")
    names: set[str] = set()
    for index, trigger in enumerate(config.trigger):
        key = f"trigger[{index}]"
        yield from under(key, _trigger(trigger))
        if trigger.name in names:
            message = f"there is a second trigger {trigger.name!r}"
            yield Problem(f"{key}.name", message, "names are unique")
        names.add(trigger.name)


def check_listener(config: Config) -> Iterator[Problem]:
    """Yield what a listener for alerts lacks; its keys may be in several files."""
    listener = config.alertmanager
    for key in ("certificate", "key", "client_ca"):
        if listener.listen is not None and not getattr(listener, key):
            yield Problem(f"alertmanager.{key}", "a listener needs this key", "a PEM file's path")


def check_sessions_of_triggers(config: Config) -> Iterator[Problem]:
    """Yield triggers whose session is in no file, or has no freeze_on."""
    sessions = {session.name: session for session in config.session}
    for index, trigger in enumerate(config.trigger):
        key = f"trigger[{index}].session"
        session = sessions.get(trigger.session)
        if trigger.session and session is None:
            hint = did_you_mean(trigger.session, sessions)
            yield Problem(key, f"there is no session {trigger.session!r}", hint)
        elif trigger.kind == "freeze" and session is not None and not session.freeze_on:
            hint = f'mode = "{FLIGHT_RECORDER}" and freeze_on = EVENT'
            yield Problem(key, f"session {session.name!r} is never frozen", hint)


def _incidents(incidents: IncidentsConfig) -> Iterator[Problem]:
    if incidents.keep < 1:
        yield Problem("keep", f"{incidents.keep} incidents", "1 or more")


def _alertmanager(listener: AlertmanagerConfig) -> Iterator[Problem]:
    for key in ("certificate", "key", "client_ca"):
        path = getattr(listener, key)
        if path and not PurePath(path).is_absolute():
            yield Problem(key, f"{path!r} is not the full path of a file")


def _trigger(trigger: TriggerConfig) -> Iterator[Problem]:
    if _NAME.fullmatch(trigger.name) is None or trigger.name in _OWN_NAMES:
        hint = "up to 32 small letters, digits, _ and -; not manual or signal"
        yield Problem("name", f"{trigger.name!r} is not a valid trigger name", hint)
    yield from _kind(trigger)
    if trigger.lost < 1:
        yield Problem("lost", f"{trigger.lost} records", "1 or more")
    if trigger.fill.bytes:
        yield Problem("fill", "is a share of a ring, not a size", 'e.g. "90%"')
    if trigger.delay > _DELAY_MAX_NS:
        yield Problem("delay", "is longer than 10m", "the rings overwrite what led to it")
    if not 0 < trigger.per_day <= _PER_DAY_MAX:
        yield Problem("per_day", f"{trigger.per_day} a day", f"1 to {_PER_DAY_MAX}")
    answers = trigger.answers or ()
    if len(answers) > _ANSWERS_MAX or not all(map(ANSWER_NAME.fullmatch, answers)):
        hint = f"at most {_ANSWERS_MAX} names, such as why-io or slow-io"
        yield Problem("answers", "has a name that no answer can have, or too many", hint)


def _kind(trigger: TriggerConfig) -> Iterator[Problem]:
    """Yield problems of the keys that some kinds need, and others do not have."""
    for key, kind in _KEYS.items():
        given = bool(getattr(trigger, key))
        if trigger.kind == kind and not given:
            yield Problem(key, f'kind = "{kind}" needs this key')
        elif given and trigger.kind != kind:
            yield Problem(key, "is of another kind of trigger", f'kind = "{kind}"')
    if trigger.session and trigger.kind not in _SESSIONS:
        yield Problem("session", f'kind = "{trigger.kind}" has no session')
    if trigger.kind in _OF_ONE_SESSION and not trigger.session:
        hint = _OF_ONE_SESSION[trigger.kind]
        yield Problem("session", f'kind = "{trigger.kind}" needs this key', hint)
    if trigger.metric and trigger.kind != "event":
        yield Problem("metric", "is of another kind of trigger", 'kind = "event"')
    if trigger.count < 1:
        yield Problem("count", f"{trigger.count} events", "1 or more")
