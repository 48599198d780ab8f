# SPDX-License-Identifier: Apache-2.0
"""pip's settings on this machine, for a pip that only sees files carried to it.

Run by `pip.sh`, with a Python that has pip. Prints words that end with a NUL, two by two:

    set NAME=VALUE    a variable of pip's environment
    carry PATH        a file or folder of this machine, absolute, that a variable names
    told SENTENCE     which part of a setting is left out, and why
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The later ones override. Sections of other commands do not concern `pip install`.
_SECTIONS: Final = ("global", "install", ":env:")
_LISTS: Final = frozenset({"constraint", "build-constraint", "requirement"})
_INDEXES: Final = frozenset({"index-url", "extra-index-url"})
# pip splits the values of these at white space.
_SEVERAL: Final = _LISTS | {"extra-index-url", "find-links"}
_NAMES_FILES: Final = _SEVERAL | {"index-url", "cert", "client-cert"}
# A configuration file's settings are here already; the others are places to write to.
_LEFT: Final = frozenset({"config-file", "cache-dir", "log", "log-file", "local-log"})
_INCLUDED: Final = re.compile(
    r"^[ \t]*(?:-[cr][ \t=]*|--(?:constraint|requirement)[ \t=]+)(\S+)", re.MULTILINE
)


def _pip(*words: str) -> str:
    command = (sys.executable, "-m", "pip", "config", *words)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _settings() -> dict[str, str]:
    """Return the settings of `pip install`, by the name of the option."""
    listed = defaultdict[str, list[str]](list)
    for line in _pip("list").splitlines():
        key, _, value = line.partition("=")
        listed[key].append(ast.literal_eval(value))
    merged = {}
    for section in _SECTIONS:
        for key, values in listed.items():
            if key.startswith(f"{section}."):
                # set in several files: pip says which counts
                value = values[0] if len(values) == 1 else _pip("get", key).rstrip("\n")
                merged[key.removeprefix(f"{section}.")] = value
    return merged


@dataclass(frozen=True, slots=True)
class _Carried:
    """The settings to carry over. `paths` and `told` are in order and without repetition."""

    paths: dict[Path, None] = field(default_factory=dict)
    told: dict[str, None] = field(default_factory=dict)

    def value(self, option: str, value: str) -> str:
        """Return a setting as it holds where only `paths` are; empty if nothing is left of it."""
        if option not in _NAMES_FILES:
            return value
        words = value.split() if option in _SEVERAL else [value]
        return " ".join(filter(None, (self._word(option, word) for word in words)))

    def _word(self, option: str, word: str) -> str:
        path = _local(word)
        if path is None:
            return word
        if not path.exists():
            self.told[f"pip's {option} {word} is left out: there is no {path}"] = None
            return ""
        self._carry(option, path)
        return word if word.startswith("file:") else str(path)

    def _carry(self, option: str, path: Path) -> None:
        # an index is beside its files
        whole = path.parent if option in _INDEXES and path.parent != Path(path.anchor) else path
        if whole in self.paths:
            return
        self.paths[whole] = None
        if option in _LISTS and path.is_file():
            for included in _INCLUDED.findall(path.read_text(errors="replace")):
                other = _local(included, path.parent)
                if other is not None and other.exists():  # else pip says so
                    self._carry(option, other)


def _local(word: str, folder: Path | None = None) -> Path | None:
    """Return the absolute path of this machine that a word of a setting means, if it means one."""
    if word.startswith("file:"):
        return Path(url2pathname(urlsplit(word).path))
    if "://" in word:
        return None
    return (folder or Path.cwd()) / Path(word).expanduser()


def main() -> None:
    """Print the settings described in the module's docstring."""
    carried = _Carried()
    answer = []
    for option, value in _settings().items():
        held = "" if option in _LEFT else carried.value(option, value)
        if held:
            answer += ["set", f"PIP_{option.upper().replace('-', '_')}={held}"]
    for path in carried.paths:
        answer += ["carry", str(path)]
    for sentence in carried.told:
        answer += ["told", sentence]
    sys.stdout.write("".join(f"{word}\0" for word in answer))


if __name__ == "__main__":
    main()
