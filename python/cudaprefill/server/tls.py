"""Whether the server can speak TLS with the files that it was given."""

from __future__ import annotations

import ssl

from cudaprefill.server.config import ServerConfig


def check_certificate(config: ServerConfig) -> None:
    """Raises ValueError or OSError naming the file that is wrong; there may be none at all."""
    certificate, key = config.ssl_certfile, config.ssl_keyfile
    if certificate is None:
        return
    for path in (certificate, key or certificate):
        with open(path, "rb"):  # for a message that has the name
            pass
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _nobody_to_ask)
    except ssl.SSLError as error:
        with_key = f" with --ssl-keyfile {key}" if key is not None else ""
        raise ValueError(f"--ssl-certfile {certificate}{with_key} cannot be used: {error.reason or error}") from None


def _nobody_to_ask() -> str:
    raise ValueError("the key of the certificate is encrypted, and there is nobody to ask for its password")
