"""Each kind of login that an Airflow connection can have goes from the tables file to a real server that asks for it.

The connections are Airflow's own, in its environment variables; the servers' certificates are by an authority of the
test's own. Plain clients, of other logins, are the judge.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from airflow_lake_provider.errors import ConfigError, LakeError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.execution.sink_connections import options_with_connection
from local_stack import kafka
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from local_stack.object_store import LocalObjectStore
from local_stack.postgres import LocalPostgres
from local_stack.processes import free_port
from tests.integration.replication.registry_server import Registry, serve
from tests.support.configured_streams import policy_of, send
from tests.support.plain_sql import run_sql
from tests.support.private_ca import load, sign
from tests.support.token_server import TokenServer, serve_tokens

ROOT = Path(__file__).parents[3]
USER = "lake user"
PASSWORD = "s3:cr/et @%#?é"
"""Neither survives a URL as it is."""
PLAIN_USER = "lake"
"""A broker's file of users has words alone."""
CLIENT_SECRET = "s3cr/et+of=client"


@dataclass(frozen=True)
class Authority:
    """A private authority with one certificate for servers and one for a client, and one that nothing trusts."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "authority.pem")

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def client(self) -> str:
        return str(self.folder / "certified.pem")

    @property
    def stranger(self) -> str:
        return str(self.folder / "stranger.pem")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("ca")
    ca = load(sign("authority", None, folder))
    sign("server", ca, folder)
    sign("certified", ca, folder)
    sign("stranger", None, folder)
    return Authority(folder)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets a connection of Airflow's and returns its id."""

    def make(**fields: Any) -> str:
        conn_id = f"c{uuid.uuid4().hex[:8]}"
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
        return conn_id

    return make


# --- Kafka


@dataclass(frozen=True)
class GuardedBroker:
    broker: LocalKafka
    ports: Mapping[str, int]
    """By the name of the listener."""
    tokens: TokenServer


_JAAS = "org.apache.kafka.common.security.{}LoginModule required"


def as_property(text: str) -> str:
    """Return a text as a file of Java's properties has it."""
    return text.encode("unicode_escape").decode().replace("\\x", "\\u00")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[GuardedBroker]:
    if not kafka.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kafka needs Maven and Java 17")
    with serve_tokens(TokenServer(f"{PLAIN_USER}:{CLIENT_SECRET}")) as tokens:
        yield from start_guarded(tmp_path_factory.mktemp("guarded"), authority, tokens)


def start_guarded(folder: Path, authority: Authority, tokens: TokenServer) -> Iterator[GuardedBroker]:
    # A broker asks no address for keys that its JVM does not allow.
    broker = LocalKafka(folder, jvm_options=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.url}/keys"])
    names = {
        "LOGIN": "SASL_SSL", "CERTIFIED": "SSL", "BARE": "SASL_PLAINTEXT", "UNSIGNED": "SASL_SSL", "SIGNED": "SASL_SSL",
    }  # fmt: skip
    ports = {name: free_port() for name in names}
    outside = ",".join(f"{name}://localhost:{port}" for name, port in ports.items())
    protocols = ",".join(f"{name}:{protocol}" for name, protocol in names.items())
    plain = f'{_JAAS.format("plain.Plain")} user_{PLAIN_USER}="{as_property(PASSWORD)}";'
    tls = {"type": "PEM", "location": str(authority.server)}
    bearer = "oauthbearer.sasl"
    broker.settings = {
        "listeners": f"PLAINTEXT://{broker.bootstrap},{outside},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{broker.bootstrap},{outside}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{protocols}",
        **{f"ssl.keystore.{name}": value for name, value in tls.items()},
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.ca,
        "listener.name.certified.ssl.client.auth": "required",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": plain,
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{_JAAS.format('scram.Scram')};",
        "listener.name.bare.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.bare.scram-sha-256.sasl.jaas.config": f"{_JAAS.format('scram.Scram')};",
        "listener.name.unsigned.sasl.enabled.mechanisms": "OAUTHBEARER",
        # The validator of Kafka's own, of tokens without a signature.
        f"listener.name.unsigned.{bearer}.jaas.config": (
            f'{_JAAS.format("oauthbearer.OAuthBearer")} unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.signed.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.signed.connections.max.reauth.ms": "5000",
        f"listener.name.signed.{bearer}.jaas.config": f"{_JAAS.format('oauthbearer.OAuthBearer')};",
        f"listener.name.signed.{bearer}.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"listener.name.signed.{bearer}.oauthbearer.jwks.endpoint.url": f"{tokens.url}/keys",
        f"listener.name.signed.{bearer}.oauthbearer.expected.audience": "kafka",
    }
    broker.start()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    mechanisms = (
        confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256,
        confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512,
    )
    for mechanism in mechanisms:
        info = confluent_kafka.admin.ScramCredentialInfo(mechanism, 4096)
        made = confluent_kafka.admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        admin.alter_user_scram_credentials([made])[USER].result(30)
    yield GuardedBroker(broker, ports, tokens)
    broker.stop()


def kafka_extra(guarded: GuardedBroker, authority: Authority, kind: str) -> dict[str, Any]:
    """Return the extra of a connection of Airflow's Kafka provider, which has more than a producer needs."""
    listeners = {"tls": "CERTIFIED", "sasl": "BARE", "unsigned token": "UNSIGNED", "token": "SIGNED"}
    bearer = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    login = {"sasl.username": USER, "sasl.password": PASSWORD}
    tls = {"ssl.ca.location": authority.ca}
    kinds = {
        "plain": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            **login,
            **tls,
            "sasl.username": PLAIN_USER,
        },
        "scram": {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **login, **tls},
        "sasl": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", **login},
        "tls": {
            "security.protocol": "SSL",
            "ssl.certificate.location": authority.client,
            "ssl.key.location": authority.client,
            **tls,
        },
        "unsigned token": {
            **bearer,
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=lake",
            **tls,
        },
        "token": {
            **bearer,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": PLAIN_USER,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": f"{guarded.tokens.url}/token",
            "sasl.oauthbearer.scope": "lake.write",
            **tls,
        },
    }
    of_hooks = {
        "group.id": "airflow", "enable.auto.commit": False, "auto.offset.reset": "latest",
        "session.timeout.ms": 6000, "error_cb": "my_package.log_error",
    }  # fmt: skip
    return {"bootstrap.servers": f"localhost:{guarded.ports[listeners.get(kind, 'LOGIN')]}", **kinds[kind], **of_hooks}


@pytest.mark.parametrize("kind", ["plain", "scram", "sasl", "tls", "unsigned token", "token"])
def test_kafka(guarded: GuardedBroker, authority: Authority, connect: Any, kind: str) -> None:
    topic = f"t{uuid.uuid4().hex[:12]}"
    conn_id = connect(conn_type="kafka", extra=kafka_extra(guarded, authority, kind))
    for number in (1, 2):  # the second run reads the checkpoint by the same login
        stream = send(sink="kafka", topic=topic, conn_id=conn_id, create_topics="yes", stream=topic, number=number)
    assert stream == topic
    assert [record.key for record in read_topic(guarded.broker.bootstrap, topic)] == [{"id": 1}] * 2


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        pytest.param({"sasl.password": "wrong"}, SinkRefusedError, "Kafka refuses this client", id="password"),
        pytest.param({"ssl.ca.location": "STRANGER"}, LakeError, "certificate", id="authority"),
        pytest.param({"ssl.ca.location": "/no/such.pem"}, LakeError, "/no/such.pem", id="no authority"),
        pytest.param({"security.protocol": "SASL_PLAINTEXT"}, LakeError, "security.protocol", id="no tls"),
        pytest.param({"sasl.mechanism": "GSSAPI"}, ConfigError, "build librdkafka with libsasl2", id="kerberos"),
    ],
)
def test_kafka_login_that_is_wrong_is_named(
    guarded: GuardedBroker, authority: Authority, connect: Any, change: dict[str, str], error: type, said: str
) -> None:
    extra = kafka_extra(guarded, authority, "plain") | {
        name: authority.stranger if value == "STRANGER" else value for name, value in change.items()
    }
    conn_id = connect(conn_type="kafka", extra=extra)
    with pytest.raises(error, match=said) as raised:
        send(sink="kafka", topic="x", conn_id=conn_id, timeout_s="6")
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        pytest.param({"client.secret": "wrong"}, SinkRefusedError, "acquire.*token.*invalid_client", id="secret"),
        pytest.param({"audience": "other"}, SinkRefusedError, "authentication error.*invalid_token", id="audience"),
        pytest.param(
            {"token.endpoint.url": "http://127.0.0.1:9/token"},
            SinkUnavailableError,
            "acquire.*token",
            id="server is away",
        ),
        pytest.param({"method": "default"}, ConfigError, "set kafka.sasl.oauthbearer.method: oidc", id="no method"),
    ],
)
def test_token_that_is_wrong_is_named(
    guarded: GuardedBroker, authority: Authority, connect: Any, change: dict[str, str], error: type, said: str
) -> None:
    guarded.tokens.audience = change.get("audience", "kafka")
    own = {f"sasl.oauthbearer.{name}": text for name, text in change.items() if name != "audience"}
    conn_id = connect(conn_type="kafka", extra=kafka_extra(guarded, authority, "token") | own)
    try:
        with pytest.raises(error, match=said) as raised:
            send(sink="kafka", topic="x", conn_id=conn_id, timeout_s="4")
    finally:
        guarded.tokens.audience = "kafka"
    assert CLIENT_SECRET not in str(raised.value)


# --- A schema registry


@pytest.fixture
def registry(authority: Authority) -> Iterator[Registry]:
    with serve(Registry(), authority.server) as served:
        yield served


def registry_fields(registry: Registry, authority: Authority, login: str) -> dict[str, Any]:
    """Return a connection as Airflow's HTTP provider has it, whose address is in one field or in three."""
    if login == "token":
        registry.token = "ey.J0.x"
        extra = {"verify": authority.ca, "Authorization": "Bearer ey.J0.x"}
        return {"conn_type": "http", "host": registry.url, "extra": extra}
    registry.login = f"{PLAIN_USER}:{PASSWORD}"
    host, _, port = registry.url.removeprefix("https://").partition(":")
    fields = {"host": host, "port": int(port), "schema": "https", "login": PLAIN_USER, "password": PASSWORD}
    return {"conn_type": "http", **fields, "extra": {"verify": authority.ca}}


def send_avro(guarded: GuardedBroker, conn_id: str, **options: str) -> str:
    topic = f"t{uuid.uuid4().hex[:12]}"
    send(
        sink="kafka", topic=topic, bootstrap_servers=guarded.broker.bootstrap, create_topics="yes", format="avro",
        schema_registry_conn_id=conn_id, **options,
    )  # fmt: skip
    return topic


@pytest.mark.parametrize("login", ["token", "password"])
def test_registry(guarded: GuardedBroker, registry: Registry, authority: Authority, connect: Any, login: str) -> None:
    topic = send_avro(guarded, connect(**registry_fields(registry, authority, login)))
    assert list(registry.subjects) == [f"{topic}-value", f"{topic}-key"]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        pytest.param(
            {"verify": True},
            SinkUnavailableError,
            "CERTIFICATE_VERIFY_FAILED.*set schema_registry_ca",
            id="no authority",
        ),
        pytest.param(
            {"verify": "STRANGER"}, SinkUnavailableError, "stranger.pem: set schema_registry_ca", id="another"
        ),
        pytest.param(
            {"verify": "/no/such.pem"}, ConfigError, "schema_registry_ca is /no/such.pem, and Spark's", id="no file"
        ),
        pytest.param({"verify": "KEY"}, ConfigError, "schema_registry_ca is .*cannot read certificates", id="a key"),
        pytest.param({"Authorization": "Bearer other"}, SinkRefusedError, "answers 401", id="token"),
        pytest.param({"Authorization": "Basic eA=="}, ConfigError, "does not begin with 'Bearer '", id="basic"),
        pytest.param({"verify": False}, ConfigError, "verify is false", id="no verification"),
        pytest.param({"cert": "/x.pem"}, ConfigError, "cert in its extra, allowed: verify", id="unknown"),
    ],
)
def test_registrys_login_that_is_wrong_is_named(
    guarded: GuardedBroker,
    registry: Registry,
    authority: Authority,
    connect: Any,
    tmp_path: Path,
    change: dict[str, Any],
    error: type,
    said: str,
) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN PRIVATE KEY-----\n")
    files = {"STRANGER": authority.stranger, "KEY": str(key)}
    fields = registry_fields(registry, authority, "token")
    fields["extra"] |= {name: files.get(str(value), value) for name, value in change.items()}
    with pytest.raises(error, match=said) as raised:
        send_avro(guarded, connect(**fields))
    assert registry.token not in str(raised.value)
    assert registry.schemas == []


# --- PostgreSQL


@pytest.fixture(scope="module")
def sealed(authority: Authority) -> Iterator[LocalPostgres]:
    """A PostgreSQL that takes a password over TLS, or a certificate."""
    server = LocalPostgres()
    server.start()
    assert server.folder is not None
    certificate = server.folder / "data" / "server.pem"
    ca = server.folder / "data" / "ca.pem"
    shutil.copy(authority.server, certificate)
    shutil.copy(authority.ca, ca)
    owner = (server.folder / "data").stat()
    for path in (certificate, ca):
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o600)
    hba = server.folder / "data" / "pg_hba.conf"
    rules = (
        f'hostssl all "{USER}" all scram-sha-256\nhostnossl all "{USER}" all reject\n'
        "hostssl all certified all cert\nhostnossl all certified all reject\n"
    )
    hba.write_text(rules + hba.read_text())
    for name in ("ssl_cert_file", "ssl_key_file"):
        run_as_owner(server, f"alter system set {name} = '{certificate}'")
    run_as_owner(server, f"alter system set ssl_ca_file = '{ca}'")
    run_as_owner(server, "alter system set ssl = on")
    shown = PASSWORD.replace("'", "''")
    run_sql(server.url, f"create role \"{USER}\" superuser login password '{shown}'".replace(":", r"\:"))
    run_sql(server.url, "create role certified login superuser")
    run_sql(server.url, "select pg_reload_conf()")
    yield server
    server.stop()


def run_as_owner(server: LocalPostgres, statement: str) -> None:
    server.query(statement)


def postgres_fields(server: LocalPostgres, authority: Authority, **extra: Any) -> dict[str, Any]:
    return {
        "conn_type": "postgres", "host": "localhost", "port": server.port, "schema": "airflow", "login": USER,
        "password": PASSWORD, "extra": {"sslmode": "verify-full", "sslrootcert": authority.ca, **extra},
    }  # fmt: skip


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({}, id="password"),
        pytest.param({"connect_timeout": 10, "keepalives": True, "cursor": "dictcursor"}, id="of a hook"),
        pytest.param({"options": "-c search_path=public"}, id="options"),
        pytest.param("certificate", id="certificate"),
        pytest.param("hosts", id="two hosts"),
    ],
)
def test_postgres(sealed: LocalPostgres, authority: Authority, connect: Any, extra: Any) -> None:
    fields = postgres_fields(sealed, authority, **(extra if isinstance(extra, dict) else {}))
    if extra == "certificate":
        fields |= {"login": "certified", "password": ""}
        fields["extra"] |= {"sslcert": authority.client, "sslkey": authority.client}
        Path(authority.client).chmod(0o600)
    if extra == "hosts":
        fields["host"] = "localhost,127.0.0.1"
    table = f"t{uuid.uuid4().hex[:12]}"
    send(sink="database", conn_id=connect(**fields), table=table, mode="latest", create="yes")
    found = sealed.query(
        f"select id, value, pg_get_userbyid(relowner) from {table}, pg_class where relname = '{table}'"
    )
    assert found == [f"1|10|{fields['login']}"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"password": "wrong"}, "password authentication failed", id="password"),
        pytest.param({"sslrootcert": "STRANGER"}, "certificate verify failed", id="authority"),
        pytest.param({"sslmode": "disable"}, "rejects connection", id="no tls"),
        pytest.param({"host": "127.0.0.2"}, "127.0.0.2", id="name"),
    ],
)
def test_postgres_login_that_is_wrong_is_named(
    sealed: LocalPostgres, authority: Authority, connect: Any, change: dict[str, str], said: str
) -> None:
    change = {name: authority.stranger if value == "STRANGER" else value for name, value in change.items()}
    fields = postgres_fields(sealed, authority)
    fields |= {name: value for name, value in change.items() if name in fields}
    fields["extra"] |= {name: value for name, value in change.items() if name.startswith("ssl")}
    with pytest.raises(SinkUnavailableError, match=said) as raised:
        send(sink="database", conn_id=connect(**fields), table="t", mode="latest", create="yes", timeout_s="5")
    assert PASSWORD not in str(raised.value)


def test_login_by_iam_is_refused(connect: Any) -> None:
    conn_id = connect(conn_type="postgres", host="db", login="u", extra={"iam": True})
    with pytest.raises(ConfigError, match="with iam its password would be a token"):
        options_with_connection("database", {"conn_id": conn_id})


# --- S3, in the Python of Spark's driver, which has s3fs

SEND = """
import json, sys
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint, insert
options = json.load(sys.stdin)
sink = create_sink("file", SinkSettings("t.s", "orders", ChangeMode("changes"), options))
sink.open()
sink.write(batch(1, [insert(1, 10)]))
sink.commit(checkpoint("t.s", 1))
sink.close()
print(sorted(sink._fs.ls(options["path"])))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalObjectStore]:
    started = LocalObjectStore(tmp_path_factory.mktemp("store"))
    started.start()
    started.make_bucket("changes")
    yield started
    started.stop()


@pytest.mark.parametrize("has_keys", [True, False])
def test_s3(store: LocalObjectStore, connect: Any, tmp_path: Path, has_keys: bool) -> None:
    folder = f"s3://changes/{uuid.uuid4().hex[:8]}"
    keys = {"login": "local", "password": "lo/c+al"} if has_keys else {}
    extra = {"endpoint_url": store.endpoint, "region_name": "eu-central-1"}
    policy = policy_of(sink="file", conn_id=connect(conn_type="aws", extra=extra, **keys), path=folder)
    options = options_with_connection("file", policy.options)
    # No credentials but the connection's: no variable, no file, no server of a cloud's.
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    ran = subprocess.run(
        [ROOT / ".venv-spark" / "bin" / "python", "-c", SEND],
        input=json.dumps(options), env=own, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if has_keys:
        assert ran.stdout.strip() == f"['{folder.removeprefix('s3://')}/000000000001.jsonl']", ran.stderr
    else:
        assert "credentials" in ran.stderr


def test_role_of_a_connection_is_refused(connect: Any) -> None:
    conn_id = connect(conn_type="aws", extra={"role_arn": "arn:aws:iam::1:role/x"})
    with pytest.raises(ConfigError, match="the file sink takes on no role"):
        options_with_connection("file", {"conn_id": conn_id, "path": "s3://b/x"})
