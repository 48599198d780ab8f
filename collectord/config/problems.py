# SPDX-License-Identifier: Apache-2.0
"""Problems of a file's values, found before it is known which file they come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PID_MAX: Final = (1 << 31) - 1  # pid_t
# Names of BPF programs, and of what they declare.
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
NAME_WORDS: Final = "small letters, digits and _, beginning with a letter"
ANSWER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `key` is relative to the checked value, e.g. "source[0].ring"."""

    key: str
    message: str
    hint: str = ""


def under(key: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems of a part, with their keys in the whole."""
    for problem in problems:
        yield Problem(
            f"{key}.{problem.key}" if problem.key else key, problem.message, problem.hint
        )


def raise_first(problems: Iterable[Problem], path: str) -> None:
    """Raise the first problem as a ConfigError of this file, if there is one."""
    for problem in problems:
        raise ConfigError(problem.message, path=path, key=problem.key, hint=problem.hint)
