"""The options of a schema registry with Confluent's interface, which formats of sink `kafka` use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.sink_options.options import TakenOptions

REGISTRY = "schema_registry"
REGISTRY_CONNECTION = "schema_registry_conn_id"
"""Names an Airflow connection of type `http`, which brings the options below."""
REGISTRY_USER = "schema_registry_user"
REGISTRY_PASSWORD = "schema_registry_password"
REGISTRY_TOKEN = "schema_registry_token"
REGISTRY_CA = "schema_registry_ca"


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where a registry is, and how its clients log in."""

    url: str
    user: str = ""
    password: str = ""
    token: str = ""
    """Sent as `Authorization: Bearer`; instead of user and password."""
    ca: str = ""
    """Path of a file with the authorities of its certificate (PEM); empty: those that the system trusts."""


def take_registry(options: TakenOptions) -> RegistryOptions | None:
    """Take the options; None without a registry. Raises OptionError."""
    address = options.text(REGISTRY)
    taken = RegistryOptions(
        address,
        options.text(REGISTRY_USER),
        options.text(REGISTRY_PASSWORD),
        options.text(REGISTRY_TOKEN),
        options.text(REGISTRY_CA),
    )
    if taken.token and (taken.user or taken.password):
        options.refuse(
            f"has {REGISTRY_TOKEN} and {REGISTRY_USER}, and a registry takes one login: leave one out", REGISTRY_TOKEN
        )
    if not options.knows(REGISTRY):
        return taken
    if not address:
        named = {REGISTRY_USER: taken.user, REGISTRY_TOKEN: taken.token, REGISTRY_CA: taken.ca}
        lonely = next((name for name, text in named.items() if text), None)
        if lonely is not None:
            options.refuse(f"has {lonely}, and no {REGISTRY}", lonely)
        return None
    if not address.startswith(("http://", "https://")):
        options.wrong(REGISTRY, address, "an address that begins with http:// or https://")
    if "@" in address.partition("://")[2].partition("/")[0]:
        options.refuse(
            f"has a {REGISTRY} with a login in its address, which logs would show: set {REGISTRY_USER} and "
            f"{REGISTRY_PASSWORD}, as a reference to a secret",
            REGISTRY,
        )
    if taken.ca and not address.startswith("https://"):
        options.refuse(f"has {REGISTRY_CA}, and {REGISTRY} is no https:// address", REGISTRY_CA)
    return taken
