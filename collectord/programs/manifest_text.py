# SPDX-License-Identifier: Apache-2.0
"""The text of a BPF program's manifest: parsed and checked, with defaults as values."""

from __future__ import annotations

from msgspec.structs import replace

from collectord.config.decode import decode
from collectord.config.document import parse
from collectord.config.problems import raise_first
from collectord.programs.filters import FILTERS
from collectord.programs.manifest_rules import check_manifest
from collectord.programs.parameter import ParameterConfig, with_defaults
from collectord.programs.program_manifest import BpfManifest
from collectord.text.foreign import convert


def load_manifest(text: bytes, path: str) -> BpfManifest:
    """Parse a manifest.

    Args:
        text: text of the file.
        path: its name, for errors.

    Raises:
        ConfigError: not TOML, an unknown key, a wrong type, name, unit or combination.
    """
    manifest = decode(parse(text, path), BpfManifest, path)
    raise_first(check_manifest(manifest), path)
    common: dict[str, ParameterConfig] = {
        name: convert(FILTERS[name], ParameterConfig) for name in manifest.filters
    }
    return replace(manifest, parameter=with_defaults({**common, **manifest.parameter}, path))
