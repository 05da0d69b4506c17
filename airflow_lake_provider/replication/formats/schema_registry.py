"""A schema registry with Confluent's interface: a schema is registered under a subject, the answer is its number."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from airflow_lake_provider.errors import ConfigError, SinkRefusedError, SinkUnavailableError

_JSON = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """One subject of a registry. By the standard library alone: Spark's driver has no other client for certain."""

    url: str
    subject: str
    user: str = ""
    password: str = ""
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"schema_registry is {self.url!r}, allowed: an address that begins with http:// or https://"
            )

    def register(self, schema: str) -> int:
        """Return the number of a schema, registered if it is new.

        Raises SinkRefusedError for a schema that the subject's rule of compatibility forbids and for a refused login,
        SinkUnavailableError for a registry that does not answer.
        """
        address = f"{self.url.rstrip('/')}/subjects/{self.subject}/versions"
        request = urllib.request.Request(
            address, json.dumps({"schema": schema}).encode(), {"Content-Type": _JSON, "Accept": _JSON}
        )
        if self.user:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                answer: Any = json.loads(response.read())
            return int(answer["id"])
        except urllib.error.HTTPError as error:
            said = f"the schema registry answers {error.code} for {address}: {_said(error)}"
            if error.code in {408, 429} or error.code >= 500:
                raise SinkUnavailableError(said) from error
            raise SinkRefusedError(said) from error
        except (OSError, http.client.HTTPException) as error:
            raise SinkUnavailableError(f"the schema registry does not answer at {address}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise SinkUnavailableError(f"what answers at {address} is no schema registry") from error


def _said(error: urllib.error.HTTPError) -> str:
    return error.read(2000).decode("utf-8", "replace")
