# SPDX-License-Identifier: Apache-2.0
"""One run of the guest: QEMU, its output, and its results."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vm.layers import Disks

CPUS: Final = 4
MEMORY: Final = "4G"
TCG_PATIENCE: Final = 10  # how much longer things may take where processors are emulated
CONSOLE_LINES_SHOWN: Final = 60
_FETCH_QEMU: Final = Path(__file__).parent.parent / "support" / "qemu10.sh"
_POLL_S: Final = 0.2
_PROBE_S: Final = 30
_SECTOR_BYTES: Final = 512
# A panic ends QEMU (-no-reboot). Soft lockups are what a busy host looks like from inside.
_KERNEL_WORDS: Final = (
    "root=/dev/vda rw init=/sbin/guest-init console=ttyS0 "
    "panic=-1 oops=panic nowatchdog mitigations=off"
)


class GuestFailed(Exception):
    """The guest did not run its job to the end.

    Attributes:
        reason: what became of it.
        console: its kernel's messages.
    """

    def __init__(self, reason: str, console: Path) -> None:
        self.reason = reason
        self.console = console
        super().__init__(f"{reason}; the console is in {console}")

    def console_end(self) -> str:
        """Return the last lines of the console."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join(text.splitlines()[-CONSOLE_LINES_SHOWN:])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits after which a guest is given up.

    Attributes:
        total_s: seconds from its start.
        silent_s: seconds without output.
        stop: set to end it at once.
    """

    total_s: float
    silent_s: float
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Run:
    """The files of one run, in a folder of its own."""

    folder: Path

    @property
    def console(self) -> Path:
        """The kernel's and systemd's messages."""
        return self.folder / "console.log"

    @property
    def output(self) -> Path:
        """The job's output."""
        return self.folder / "output.log"

    @property
    def results(self) -> Path:
        """The files that the job left, its status, and the journal."""
        return self.folder / "results"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a guest: the QEMU program, and the disks that it boots from."""

    qemu: str
    disks: Disks


def run(
    job: str, machine: Machine, files: Run, limits: Limits, show: Callable[[str], None]
) -> int:
    """Boot a guest, have it run the shell script `job`, and return the script's status.

    Raises:
        GuestFailed: it crashed, hung, or stopped without a result.
    """
    disks = machine.disks
    processor = _processor(machine.qemu, disks)
    result = files.folder / "result.tar"
    disk = files.folder / "job"
    patience = TCG_PATIENCE if _is_emulated(processor) else 1
    script = f"export COLLECTORD_PATIENCE={patience}\n{job}\n".encode()
    disk.write_bytes(script + b"\n" * (-len(script) % _SECTOR_BYTES))
    words = (
        *processor,
        *("-append", _KERNEL_WORDS, "-smp", str(CPUS), "-m", MEMORY),
        *_drive(disks.base, "snapshot=on"),
        *_drive(disks.project, "snapshot=on"),
        *_drive(disk, "readonly=on"),
        *("-serial", f"file:{files.console}"),
        *("-device", "virtio-serial-pci", *_port("output", files.output)),
        *_port("result", result),
        *("-object", "rng-random,id=rng,filename=/dev/urandom"),
        *("-device", "virtio-rng-pci,rng=rng"),
    )
    with (files.folder / "qemu.log").open("wb") as log:
        reason = _watch(words, files, limits, show, log.fileno())
    if reason:
        raise GuestFailed(reason, files.console)
    try:
        with tarfile.open(result) as archive:
            # Python before 3.11.4 has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(files.results)  # noqa: S202  # from our own guest
        status = int((files.results / "status").read_text())
    except (tarfile.TarError, OSError, ValueError) as error:
        message = f"the guest stopped without a result ({error})"
        raise GuestFailed(message, files.console) from error
    result.unlink()
    disk.unlink()
    return status


def _processor(qemu: str, disks: Disks) -> tuple[str, ...]:
    common = (
        *(qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35,usb=off,vmport=off", "-kernel", str(disks.kernel)),
    )
    kvm = (*common, "-accel", "kvm", "-cpu", "host")
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and boots(kvm, _PROBE_S):
        return (*kvm, "-initrd", str(disks.initrd))
    # With a thread for each CPU, QEMU 10 may go on to execute an int3 that the kernel has long
    # replaced (a static key was switched), and the guest dies of it.
    # A processor without AVX and fast string instructions: emulating these takes a fifth longer.
    emulated = ("-accel", "tcg,thread=single", "-cpu", "Nehalem-v1")
    return (*common, *emulated, "-initrd", str(disks.initrd))


def _is_emulated(words: tuple[str, ...]) -> bool:
    return "kvm" not in words


def boots(machine: tuple[str, ...], limit_s: float) -> bool:
    """Return whether the kernel starts and panics for lack of a root, which ends QEMU.

    A machine may have /dev/kvm while its processors lack support.
    """
    words = (*machine, "-append", "console=ttyS0 panic=-1", "-m", "1G")
    try:
        done = subprocess.run(
            (*words, "-serial", "stdio"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and b"Unable to mount root" in done.stdout


def _drive(path: Path, options: str) -> tuple[str, str]:
    return "-drive", f"file={path},if=virtio,format=raw,{options}"


def _port(name: str, path: Path) -> tuple[str, ...]:
    return (
        *("-chardev", f"file,id={name},path={path}"),
        *("-device", f"virtserialport,chardev={name},name=collectord.{name}"),
    )


def find_qemu() -> str:
    """Return the path of a QEMU that boots the guest. Raises RuntimeError if none can be had."""
    done = subprocess.run([_FETCH_QEMU], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()


def _watch(
    words: tuple[str, ...], files: Run, limits: Limits, show: Callable[[str], None], log: int
) -> str:
    """Run QEMU to its end and show its output. Returns why it was given up, or ""."""
    began = heard = time.monotonic()
    files.output.touch()
    with ExitStack() as stack:
        output = stack.enter_context(files.output.open(errors="replace"))
        process = subprocess.Popen(
            ("setpriv", "--pdeathsig", "KILL", "--", *words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        while True:
            status = process.poll()
            if text := output.read():
                heard = time.monotonic()
                show(text)
            now = time.monotonic()
            if status is not None:
                break
            if now - heard > limits.silent_s:
                return f"the guest printed nothing for {limits.silent_s:.0f} s"
            if now - began > limits.total_s:
                return f"the guest did not end within {limits.total_s:.0f} s"
            if limits.stop.wait(_POLL_S):
                return "the guest was stopped"
    if status == -signal.SIGKILL:
        return "QEMU was killed"
    return f"QEMU ended with status {status}" if status else ""
