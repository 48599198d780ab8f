# SPDX-License-Identifier: Apache-2.0
"""Stacks of samples for the verbs that write them: `flame` and `export`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.cli import EXIT_OK
from collectord.cli.output import complain
from collectord.cli.query_parts import complain_of, complain_of_names
from collectord.errors import SinkError, UsageError
from collectord.folders.walk import read_file
from collectord.reader.flame import folded
from collectord.reader.flame.forms import FOLDED, form_of
from collectord.reader.flame.off_cpu import read_waits
from collectord.reader.flame.profile import Asked, By, Profile, read_profile
from collectord.reader.segment_tables import open_catalogue
from collectord.reader.symbols.symbol_cache import user_cache
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean
from collectord.text.wording import counted, were

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from collectord.reader.event_file import Window
    from collectord.reader.flame.forms import Form
    from collectord.reader.flame.picture import Picture
    from collectord.reader.flame.profile import Waits
    from collectord.reader.symbols.debuginfod import Debuginfod

_FOLDED_MAX_BYTES: Final = 256 << 20


class Wishes(NamedTuple):
    """The choice of samples, and how they are counted.

    Attributes:
        session: only its segments; None: all.
        globs: of events; none: the one whose samples are taken by frequency or period.
        by: what the outermost frame is.
        off_cpu: the time that threads wait, by the stacks of their switches, instead of samples.
        servers: asked for debug files that are not here.
    """

    session: str | None = None
    globs: Sequence[str] = ()
    by: By = "comm"
    off_cpu: bool = False
    servers: Debuginfod | None = None


class ReadStacks(NamedTuple):
    """The profile of some targets, and the exit status for it."""

    profile: Profile
    status: int


def chosen_form(output: Path | None, *, compares: bool) -> Form:
    """Return the form of a file to write, or of what is printed without one.

    Args:
        output: the file.
        compares: two profiles are compared.

    Raises:
        UsageError: its name says no form, or one that has no comparison.
    """
    form = FOLDED if output is None else form_of(output.name)
    if compares and not form.compares:
        raise UsageError(f"{form.suffix} files have no comparison", hint="choose .svg or .html")
    return form


def read_stacks(targets: Sequence[Path], window: Window, wishes: Wishes) -> ReadStacks:
    """Count the stacks in targets, and say on stderr what is missing.

    Raises:
        UsageError: the targets have no such samples.
        SinkError: a target cannot be read.
    """
    ready = [path for path in targets if path.suffix == FOLDED.suffix]
    if ready:
        chosen = wishes.session or wishes.globs or wishes.off_cpu
        if len(ready) < len(targets) or not window.everything or chosen:
            raise UsageError(
                "folded stacks have no events and times, and stand alone",
                hint="name only .folded files, without options that choose what is read",
            )
        return ReadStacks(_folded(ready), EXIT_OK)
    with ExitStack() as stack:
        catalogue = open_catalogue(targets, stack, session=wishes.session, nearest=did_you_mean)
        globs = [glob for word in wishes.globs for glob in word.split(",")]
        cache = user_cache(wishes.servers)
        asked = Asked(window, globs, wishes.by, cache, visible, did_you_mean)
        read = read_waits if wishes.off_cpu else read_profile
        profile = read(catalogue.files, asked)
        status = complain_of(catalogue, profile.scans)
    complain_of_names(profile.nameless, profile.left_out)
    if profile.placeless:
        complain(
            f"samples of {len(profile.placeless)} files, such as {profile.placeless[0].path}, "
            "have no cgroups"
        )
    if profile.waits is not None:
        _complain_of_waits(profile.waits)
    return ReadStacks(profile, status)


def title_of(targets: Sequence[Path], wishes: Wishes) -> str:
    """Return what the stacks are of."""
    what = wishes.session or ", ".join(map(str, targets))
    kind = "time off the CPU" if wishes.off_cpu else ", ".join(wishes.globs) or "samples"
    return visible(f"{kind} of {what}")


def write_stacks(picture: Picture, form: Form, write: Callable[[bytes], object]) -> None:
    """Write the file of a form."""
    for piece in form.encode(picture):
        write(piece if isinstance(piece, bytes) else piece.encode())


def _folded(paths: Sequence[Path]) -> Profile:
    profile = Profile()
    for path in paths:
        try:
            data = read_file(path, _FOLDED_MAX_BYTES)
        except OSError as error:
            raise SinkError(
                "cannot read the stacks", path=str(path), errno=error.errno or 0
            ) from error
        text = data.decode(errors="backslashreplace")
        profile.stacks += folded.parse(text, str(path), visible)
    return profile


def _complain_of_waits(waits: Waits) -> None:
    """Say which waits are not seen as a whole."""
    if waits.unfinished and not waits.pairs:
        complain(
            "no thread comes back in what was read: record the switches of all threads "
            "(`collectord record -a`), since another thread leaves when one comes back"
        )
    elif waits.unfinished:
        one = waits.unfinished == 1
        complain(
            f"{counted(waits.unfinished, 'wait')} {'has' if one else 'have'} no end in what was "
            f"read, and {were(waits.unfinished)} not counted"
        )
    if waits.begun_before:
        complain(
            f"{counted(waits.begun_before, 'wait')} had begun before what was read, and "
            f"{were(waits.begun_before)} not counted"
        )
    if waits.open:
        complain(
            f"{counted(waits.open, 'wait')} had not ended, and {were(waits.open)} counted up to "
            "the end"
        )
