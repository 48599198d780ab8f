# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by openssl: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority in a folder of its own.

    Attributes:
        own: its certificate, which signs others, and its key.
    """

    folder: Path
    own: Pair

    @classmethod
    def made(cls, folder: Path) -> Authority:
        """Make an authority in a folder, which is made."""
        folder.mkdir()
        own = Pair(folder / "ca.pem", folder / "ca.key")
        # Python 3.13 takes no authority without it.
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        words = ("req", "-x509", *_KEY, "-subj", "/CN=authority", "-addext", usage)
        _openssl(*words, *_files(own), "-days", "2")
        return cls(folder, own)

    def sign(self, name: str, *, host: str = "127.0.0.1", usage: str = "", days: int = 2) -> Pair:
        """Return a certificate of this name and its key.

        Args:
            name: of the files, and the certificate's own.
            host: address of the machine that it is for.
            usage: "serverAuth" or "clientAuth" for one of a single use.
            days: from now to its end; less than 0 for one that has ended.
        """
        made = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        asked, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.cnf"
        purpose = f"extendedKeyUsage={usage}\n" if usage else ""
        extensions.write_text(
            f"basicConstraints=critical,CA:FALSE\nsubjectAltName=IP:{host}\n{purpose}"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl("req", *_KEY, "-subj", f"/CN={name}", *_files(Pair(asked, made.key)))
        _openssl(
            *("x509", "-req", "-in", str(asked), "-out", str(made.certificate)),
            *("-CA", str(self.own.certificate), "-CAkey", str(self.own.key)),
            *("-extfile", str(extensions), "-days", str(days)),
        )
        made.key.chmod(0o600)
        return made


def _files(pair: Pair) -> tuple[str, ...]:
    return ("-out", str(pair.certificate), "-keyout", str(pair.key))


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
