"""The operator's arguments as values. What is rendered from a template arrives as text. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import Mode, Service, ServiceRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parse_request(service: str, mode: str, instants: Sequence[str] | str) -> ServiceRequest:
    """Return what is to be done. Raises ServiceRefusedError that names the allowed values."""
    try:
        wanted_service, wanted_mode = Service(service), Mode(mode)
    except ValueError as error:
        allowed = f"services: {', '.join(Service)}; modes: {', '.join(Mode)}"
        raise ServiceRefusedError(f"{error}; allowed {allowed}") from error
    parts = instants.split(",") if isinstance(instants, str) else instants
    named = tuple(str(part).strip() for part in parts if str(part).strip())
    return ServiceRequest(wanted_service, wanted_mode, named)


def parse_settings(settings: Mapping[str, str] | str | None, what: str) -> dict[str, str]:
    """Return settings given as a mapping or as JSON text; empty means none. Raises ServiceRefusedError."""
    try:
        parsed = (json.loads(settings) or {}) if isinstance(settings, str) and settings.strip() else settings or {}
    except ValueError as error:
        raise ServiceRefusedError(f"{what} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ServiceRefusedError(f"{what} must be a mapping of settings, got {settings!r}")
    return {str(key): str(value) for key, value in parsed.items()}


def is_true(value: bool | str) -> bool:  # noqa: FBT001 - a template renders to text
    """Return a flag given as a value or as text."""
    return value if isinstance(value, bool) else value.strip().lower() in {"true", "1", "yes"}
