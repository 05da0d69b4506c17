"""What Kafka's errors mean to a stream, and formats whose schemas are in a registry."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka

from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.shared.http_answer import ask
from airflow_lake_provider.shared.plain_text import first_line, plain
from airflow_lake_provider.sink_options.kafka import AVRO, PROTOBUF
from airflow_lake_provider.sink_options.registry import REGISTRY_CA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.change import ChangeMode
    from airflow_lake_provider.replication.formats.avro import AvroFormat
    from airflow_lake_provider.replication.formats.protobuf import ProtobufFormat
    from airflow_lake_provider.sink_options.kafka import KafkaOptions
    from airflow_lake_provider.sink_options.registry import RegistryOptions

Client = TypeVar("Client")

# --- What Kafka's errors mean to a stream: retry, give up, or make way for another run

REFUSALS = frozenset(
    {
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
        confluent_kafka.KafkaError._AUTHENTICATION,
    }
)
_REASONS = (
    REFUSALS,
    frozenset({confluent_kafka.KafkaError._SSL}),
    frozenset({confluent_kafka.KafkaError._TRANSPORT}),
)
"""Errors of a connection, those first that say more than that there is none."""
PURGED = frozenset({confluent_kafka.KafkaError._PURGE_QUEUE, confluent_kafka.KafkaError._PURGE_INFLIGHT})
_FENCED = frozenset(
    {
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


_KERBEROS = (
    "the wheels of confluent-kafka have no Kerberos: on Spark's driver build librdkafka with libsasl2 (./configure "
    "--enable-gssapi), then run pip install --no-binary confluent-kafka with the same version"
)
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"


def open_client(make: Callable[[dict[str, Any]], Client], options: KafkaOptions, more: Mapping[str, Any]) -> Client:
    """Return a client of the broker. Raises ConfigError for settings that it does not take."""
    try:
        return make({**options.client_settings, **more})
    except confluent_kafka.KafkaException as error:
        missing = [
            f"; {name} is {path}, and Spark's driver has no such file"
            for name, path in options.client.items()
            if name.endswith(".location") and not Path(path).exists()
        ]
        said = first_line(error.args[0].str())
        if "GSSAPI" in said:
            said += f"; {_KERBEROS}"
        raise ConfigError(
            f"Kafka's client does not take its settings (kafka.* of the entry, and the extra of its connection): "
            f"{said}{''.join(missing)}"
        ) from error


def find_reason(errors: Sequence[KafkaError], failure: KafkaError) -> KafkaError:
    """Return why a client has no connection: it retries until a time-out, and reports the cause only on the way."""
    found = (next((error for error in errors if error.code() in codes), None) for codes in _REASONS)
    return next((error for error in found if error is not None), failure)


def as_lake_error(error: KafkaError, options: KafkaOptions, stream: str) -> LakeError:
    """Return the provider's error with what happened and where; its class shows what to do."""
    where = f"{options.bootstrap_servers}, topic {options.topic}"
    code = error.code()
    if code in _FENCED:
        return SinkFencedError(f"another run has opened stream {stream} ({where})")
    text = first_line(error.str())
    if text.startswith(_NO_TOKEN) and '"error"' not in text:
        # Without an answer in the form of OAuth's refusals, its server is away.
        return SinkUnavailableError(f"no token for Kafka at {where}: {text}")
    if code in REFUSALS:
        return SinkRefusedError(f"Kafka refuses this client at {where}: {text}")
    if code == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordRefusedError(f"Kafka refuses a record as too large at {where}: {text}")
    said = f"Kafka at {where}: {error.name()}: {text}"
    if code == confluent_kafka.KafkaError._TRANSPORT:
        # The client logs why, and says it in no error.
        protocol = options.client.get("security.protocol", "PLAINTEXT")
        said += f"; is the broker up, and its listener's security.protocol {protocol}?"
    return SinkUnavailableError(said)


def transaction_overdue(options: KafkaOptions, stream: str, commit: str, took_s: float) -> LakeError:
    """Return the error of a commit whose write took longer than the broker leaves a transaction open."""
    return SinkUnavailableError(
        f"the broker has ended the transaction of commit {commit}, stream {stream} ({options.bootstrap_servers}, topic "
        f"{options.topic}): it was open for {took_s:.0f} s, and kafka.transaction.timeout.ms is "
        f"{options.transaction_timeout_ms}: set a smaller max_transaction_rows, or raise that time-out, and the "
        "broker's transaction.max.timeout.ms where it is lower"
    )


# --- Formats with a schema. Not in the sink's module: only a run with one needs its library in Spark's driver


def open_format(options: KafkaOptions, mode: ChangeMode) -> AvroFormat | ProtobufFormat | None:
    """Return the format of the options; None where it is no format with a schema of its own.

    Raises ConfigError where its library is not installed.
    """
    if options.format not in (AVRO, PROTOBUF):
        return None
    registry = options.registry
    try:
        # Not at the top: JSON must do without them.
        if registry is None:
            from airflow_lake_provider.replication.formats.avro import AvroFormat

            return AvroFormat(mode)
        value, key = (
            SchemaRegistry(registry, f"{options.topic}-{part}", options.timeout_s, options.format.upper())
            for part in ("value", "key")
        )
        if options.format == PROTOBUF:
            from airflow_lake_provider.replication.formats.protobuf import ProtobufFormat

            return ProtobufFormat(mode, value, key)
        from airflow_lake_provider.replication.formats.avro import AvroFormat
    except ModuleNotFoundError as error:
        library = "protobuf and proto-schema-parser" if options.format == PROTOBUF else "fastavro"
        raise ConfigError(
            f"format: {options.format} needs {error.name} on Spark's driver: install {library}"
        ) from error
    return AvroFormat(mode, value.register, key.register, value.find)


# --- A schema registry with Confluent's interface: a schema is registered under a subject, the answer is its number

_NO_VERSION = (40401, 40402)
"""The registry's own numbers for a subject, and for a version, that it does not have."""
_JSON = "application/vnd.schemaregistry.v1+json"
MAX_SCHEMA_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """One subject of a registry. Uses the standard library alone: Spark's driver may have no other client."""

    options: RegistryOptions
    subject: str
    timeout_s: float = 30.0
    schema_type: str = "AVRO"
    """Of the schemas that are registered, in the registry's spelling."""

    def register(self, schema: str) -> int:
        """Return the number of a schema, registered if it is new.

        Raises SinkRefusedError for a schema that the subject's rule of compatibility forbids and for a refused login,
        SinkUnavailableError for a registry that does not answer.
        """
        # Without the word it is Avro, also to registries that know nothing else.
        body = {"schema": schema} | ({} if self.schema_type == "AVRO" else {"schemaType": self.schema_type})
        answer = self._ask(f"subjects/{self.subject}/versions", json.dumps(body).encode(), "id")
        # Four bytes before each record say it.
        if type(answer) is not int or not 0 <= answer < 1 << 31:
            raise SinkUnavailableError(
                f"the schema registry at {self.options.url} numbers a schema {first_line(repr(answer), 50)}"
            )
        return answer

    def find(self, number: int) -> str:
        """Return the schema of a number. Raises as `register` does."""
        return str(self._ask(f"schemas/ids/{number}", None, "schema"))

    def find_latest(self) -> str | None:
        """Return the subject's last version; None before the first. Raises as `register` does."""
        try:
            return str(self._ask(f"subjects/{self.subject}/versions/latest", None, "schema"))
        except _NoVersionError:
            return None

    def _ask(self, path: str, body: bytes | None, wanted: str) -> Any:
        options = self.options
        address = f"{options.url.rstrip('/')}/{path}"
        request = urllib.request.Request(address, body, {"Content-Type": _JSON, "Accept": _JSON})
        if options.token:
            request.add_header("Authorization", f"Bearer {options.token}")
        elif options.user:
            login = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            answer = ask(request, self.timeout_s, _trust_of(options), MAX_SCHEMA_BYTES)
        except OSError as error:
            said = f"the schema registry does not answer at {address}: {error}"
            if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                trusted = options.ca or "the authorities that its system trusts"
                said += (
                    f"; Spark's driver trusts {trusted}: set {REGISTRY_CA} to a file with the authority's certificate"
                )
            raise SinkUnavailableError(said) from error
        if answer.is_success:
            try:
                return json.loads(answer.content)[wanted]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise SinkUnavailableError(f"the server at {address} is not a schema registry") from error
        said = plain(answer.content[:2000].decode("utf-8", "replace"))
        reason = f"the schema registry answers {answer.status} for {address}: {said}"
        if answer.status == 404 and any(f'"error_code":{code}' in said.replace(" ", "") for code in _NO_VERSION):
            raise _NoVersionError(reason)
        if answer.status in {408, 429} or answer.status >= 500:
            raise SinkUnavailableError(reason)
        raise SinkRefusedError(reason)


def _trust_of(options: RegistryOptions) -> ssl.SSLContext | None:
    """Return what the registry's certificate must be by; None for what the system trusts. Raises ConfigError."""
    if not options.ca:
        return None
    try:
        return ssl.create_default_context(cafile=options.ca)
    except OSError as error:  # ssl.SSLError, for a file without a certificate, is one
        raise ConfigError(
            f"{REGISTRY_CA} is {options.ca}, and Spark's driver cannot read certificates (PEM) there: {error}"
        ) from error


class _NoVersionError(SinkRefusedError):
    """The registry itself says that the subject has no version: any other 404 may be a wrong address."""
