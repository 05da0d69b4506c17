"""Which server clients take for the manager's: the one that Airflow's own client trusts, or the environment.

Standard library only, since `lake` starts with it. Every client of the manager takes its context from here: the hook of
tasks, the readers of timelines in sensors and triggers, the `lake` command. Standing applications get the authorities
as text, for their drivers may run on another machine.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""Python's own client follows the first two, and requests' the last one: whichever an installation has set is meant."""
_CERTIFICATE = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ManagerTrust:
    """The settings of Airflow's own client, `[api] ssl_ca_file` and so on, and the environment's authorities."""

    ca_file: str = ""
    """In place of the system's authorities."""
    server_cert: str = ""
    """The certificate that Airflow's API server shows, which may have signed itself."""
    client_cert: str = ""
    client_key: str = ""
    uses_public: bool = True
    """Whether certifi's authorities are trusted as well."""
    environment: tuple[tuple[str, str], ...] = ()
    """Files and folders, with the variables that name them."""

    def private_authorities(self) -> str:
        """Return the certificates of Airflow's settings as text, without any key next to them."""
        texts = (_read(name, path) for name, path in self._files() if path)
        return "\n".join(found for text in texts for found in _CERTIFICATE.findall(text))

    def _files(self) -> tuple[tuple[str, str], ...]:
        return ("[api] ssl_ca_file", self.ca_file), ("[api] ssl_cert", self.server_cert)


def read_trust(get: Callable[[str, str], str], environ: Mapping[str, str]) -> ManagerTrust:
    """Return what is configured; `get` returns an option of Airflow by section and name, empty where it is not set."""
    return ManagerTrust(
        ca_file=get("api", "ssl_ca_file"),
        server_cert=get("api", "ssl_cert"),
        client_cert=get("api", "client_ssl_cert"),
        client_key=get("api", "client_ssl_key"),
        uses_public=get("api", "client_use_public_certs").lower() not in ("false", "f", "0"),
        environment=tuple((name, environ[name]) for name in CA_VARIABLES if environ.get(name)),
    )


def explain(error: Exception) -> str:
    """Return a client's error as text, with what to set when the server's certificate is not trusted."""
    text = str(getattr(error, "reason", error)) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" not in text:
        return text
    return f"{text}; set [api] ssl_ca_file of this host to the file of the authority that signed it, or SSL_CERT_FILE"


NO_SETTINGS = ManagerTrust()


@lru_cache(maxsize=16)
def ssl_context(url: str, trust: ManagerTrust) -> ssl.SSLContext:
    """Return what a client of this URL verifies its server with. Raises ConfigError that names the setting."""
    if not url.lower().startswith("https:"):
        # It trusts no server, and reading hundreds of authorities for nothing takes a while.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context = ssl.create_default_context(cafile=trust.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise _unreadable("[api] ssl_ca_file", trust.ca_file, error) from error
    if trust.uses_public:
        _trust_public(context)
    for name, path in (("[api] ssl_cert", trust.server_cert), *trust.environment):
        _trust(context, name, path)
    if trust.client_cert or trust.client_key:
        try:
            context.load_cert_chain(trust.client_cert, trust.client_key or None)
        except (OSError, ssl.SSLError) as error:
            raise _unreadable("[api] client_ssl_cert with client_ssl_key", trust.client_cert, error) from error
    return context


def _trust(context: ssl.SSLContext, name: str, path: str) -> None:
    if not path:
        return
    try:
        if Path(path).is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise _unreadable(name, path, error) from error


def _trust_public(context: ssl.SSLContext) -> None:
    try:
        import certifi
    except ImportError:
        return
    context.load_verify_locations(cafile=certifi.where())


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(name, path, error) from error


def _unreadable(name: str, path: str, error: Exception) -> ConfigError:
    return ConfigError(f"{name} = {path} cannot be read, so the manager's certificate cannot be verified: {error}")
