# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, results on stdout, the log on stderr."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final, Protocol, cast

from collectord import __version__
from collectord.cli.output import complain, emit, flush, open_standard_streams, say
from collectord.control.imports import slow_imports
from collectord.errors import CollectordError, UsageError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord.kernel.port import Kernel

# Verb to its summary; the verb's module has the same name and is imported on use.
VERBS: Final = {
    "run": "Run the daemon in the foreground, with the given configuration.",
    "opener": "Hold rings for the daemon, so that a restart loses nothing.",
    "record": "Record events into files, and account for every record.",
    "list": "List the events of this host, and show whether they can be opened.",
    "check": "Validate configuration files and print the plan; change nothing.",
    "bpf": "List BPF programs, or check one and show what it needs and exports.",
    "doctor": "Show what works on this host, and how to get what is missing.",
    "status": "Show whether a daemon runs, and how its sessions are.",
    "top": "Show the sessions and rings of a running daemon while they change.",
    "sessions": "Show, pause, start or stop the sessions of a running daemon.",
    "mark": "Write a marker into the ftrace rings of a running daemon.",
    "snapshot": "Store the contents of a running daemon's flight recorders.",
    "incident": "Make, list, show or export incidents: what led to some trouble.",
    "rotate": "Seal the segments of a running daemon, and continue in new ones.",
    "reload": "Let a running daemon read its configuration anew, without a gap.",
    "segments": "List, verify or repair segments, or extract their AUX traces.",
    "ledger": "Say whether a time is stored without a loss, and what is missing.",
    "events": "Decode, filter, count or follow the events in segments.",
    "query": "Answer a question in SQL from the records in segments.",
    "answer": "Answer a common question from the records in segments.",
    "why": "Say why something is slow: several answers about one subject.",
    "export": "Write the records in segments in the formats of other tools.",
    "ship": "Put sealed segments into an object store, each exactly once.",
    "flame": "Show where time goes, from the call chains of samples in segments.",
    "fleet": "Ask many hosts at once, by what they have put into an object store.",
}

# Verbs that make privileged calls, or read what only the kernel tells.
KERNEL_VERBS: Final = frozenset(
    {"run", "opener", "record", "list", "check", "bpf", "doctor", "ship"}
)

# Verbs that log nothing.
_WITHOUT_LOG: Final = (
    *(["events"], ["ledger"], ["query"], ["answer"], ["why"], ["export"], ["flame"]),
    ["fleet"],
)

EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
# `record -- COMMAND`: other statuses are the command's, as with env(1) and timeout(1).
EXIT_RECORD_FAILED: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NO_COMMAND: Final = 127
EXIT_INTERRUPTED: Final = 130


class Verb(Protocol):
    """The interface of a verb's module."""

    def run(self, arguments: Sequence[str], *kernel: Kernel) -> int:
        """Run the verb and return the exit status. Raises CollectordError.

        Args:
            arguments: words behind the verb.
            kernel: one for a verb of `KERNEL_VERBS`, none for the others.
        """


def main(make_kernel: Callable[[], Kernel], argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    Args:
        make_kernel: gives the kernel to a verb of `KERNEL_VERBS`, and is not called for others.
        argv: the command line without the program's name; by default this process's.
    """
    # Not list(...): once the verb of that name is loaded, `list` is its module here.
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    open_standard_streams()
    try:
        if arguments[:1] not in _WITHOUT_LOG:
            with slow_imports():
                from collectord.cli import log  # noqa: PLC0415  # a third of the start
            log.configure()
        status = _dispatch(arguments, make_kernel)
        flush()
    except CollectordError as error:
        _print_error(error)
        return _failure_status(arguments, error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _failure_status(arguments, EXIT_FAILURE)
    except Exception:  # noqa: BLE001  # the last resort: a command's status must not be imitated
        from collectord.cli import log  # noqa: PLC0415

        if arguments[:1] in _WITHOUT_LOG:
            log.configure()  # it would be on standard output, as if it were a result
        log.get_logger().exception("internal_error")
        return _failure_status(arguments, EXIT_FAILURE)
    return status


def _print_error(error: CollectordError) -> None:
    """Print why the program ends; in the journal as its other lines."""
    from collectord.cli import log  # noqa: PLC0415

    if log.is_journal():
        code = error.exit_code
        log.get_logger().error("ended_by_error", error=str(error), exit_code=code)
    else:
        complain(str(error))


def _failure_status(arguments: list[str], status: int) -> int:
    return EXIT_RECORD_FAILED if arguments[:1] == ["record"] and "--" in arguments else status


def _dispatch(arguments: list[str], make_kernel: Callable[[], Kernel]) -> int:
    verb, *rest = arguments or ["--help"]
    if verb not in VERBS:
        return _without_verb(verb, rest)
    module = _load(verb)
    return module.run(rest, *([make_kernel()] if verb in KERNEL_VERBS else []))


def _load(verb: str) -> Verb:
    with slow_imports():
        return cast("Verb", importlib.import_module(f"collectord.cli.{verb}"))


def _without_verb(word: str, rest: list[str]) -> int:
    if word == "--version":
        say(f"collectord {__version__}")
        return EXIT_OK
    if word in {"-h", "--help"} and not rest:
        emit(_overview())
        return EXIT_OK
    hint = did_you_mean(word, VERBS) or f"one of {', '.join(VERBS)}"
    raise UsageError(f"no verb {word!r}", hint=hint)


def _overview() -> str:
    """Return the text of `collectord --help`."""
    verbs = "\n".join(f"  {verb:<10}{summary}" for verb, summary in VERBS.items())
    return (
        "usage: collectord VERB [OPTIONS]\n\n"
        "Drains the kernel's trace buffers to files and accounts for each record.\n\n"
        f"verbs:\n{verbs}\n\n"
        "examples:\n"
        "  collectord run --config config/collectord.toml\n"
        "  collectord record -a -g --duration 10s\n"
        "  collectord record -e sched:sched_switch --json -- sleep 1\n\n"
        "`collectord VERB --help` shows a verb's options; --version the version.\n"
    )
