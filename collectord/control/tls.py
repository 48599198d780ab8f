# SPDX-License-Identifier: Apache-2.0
"""The TLS of a listener that asks each client for a certificate, and knows no other client."""

from __future__ import annotations

import os
import ssl
import stat
from typing import TYPE_CHECKING, NoReturn

from collectord.errors import ConfigError

if TYPE_CHECKING:
    from collectord.config.schema import AlertmanagerConfig


def server_tls(config: AlertmanagerConfig) -> ssl.SSLContext:
    """Return the context of the listener for alerts.

    Raises:
        ConfigError: a file cannot be read, is none of its kind, or does not fit the others; or
            other users may read the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    _check_key(config.key)
    try:
        context.load_cert_chain(config.certificate, config.key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        reason = f"it and the key are not a pair of PEM files: {_reason(error)}"
        raise _error("certificate", config.certificate, reason) from error
    except OSError as error:
        raise _error("certificate", config.certificate, error.strerror) from error
    try:
        context.load_verify_locations(cafile=config.client_ca)
    except ssl.SSLError as error:
        reason = f"it has no certificate in PEM: {_reason(error)}"
        raise _error("client_ca", config.client_ca, reason) from error
    except OSError as error:
        raise _error("client_ca", config.client_ca, error.strerror) from error
    return context


def _check_key(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(fd).st_mode
        finally:
            os.close(fd)
    except OSError as error:
        raise _error("key", path, error.strerror) from error
    if not stat.S_ISREG(mode):
        raise _error("key", path, "it is not a file")
    if mode & stat.S_IRWXO:
        raise _error("key", path, "other users may read it", f"chmod o= {path}")


def _refuse_passphrase() -> NoReturn:
    raise ConfigError(
        "the key has a passphrase, which nobody could type",
        key="alertmanager.key",
        hint="openssl pkey -in FILE -out FILE writes it without one",
    )


def _error(key: str, path: str, reason: str | None, hint: str = "") -> ConfigError:
    return ConfigError(f"{path} cannot be used: {reason}", key=f"alertmanager.{key}", hint=hint)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unknown").lower().replace("_", " ")
