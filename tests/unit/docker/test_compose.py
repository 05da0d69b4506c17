"""What must hold for docker/: the tests have no container engine."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from airflow.cli.cli_config import ActionCommand, GroupCommand, core_commands

from airflow_lake_provider.cli.definition import get_cli_commands
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_file import load_tables_file
from airflow_lake_provider.get_provider_info import get_provider_info
from airflow_lake_provider.hudi.base_path import require_allowed
from airflow_lake_provider.job_contract import find_lock_problem
from local_stack import hudi_bundle
from local_stack.maven_central import checksums

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
COMPOSE_TEXT = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LONG_RUNNING = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")

_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z0-9_]+)(?:(:[-?])([^}]*))?\}")
_SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKENS?$|_KEY(_ID)?$|SQL_ALCHEMY_CONN")
PLACEHOLDER = "a-secret-of-the-tests"


def interpolated(text: str) -> str:
    """Return a text as Compose would, with defaults and with placeholders for what must be given."""
    return _VARIABLE.sub(lambda match: match[3] if match[2] == ":-" else PLACEHOLDER, text)


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in (service.get("environment") or {}).items()}


def env_example() -> dict[str, str]:
    lines = (DOCKER / ".env.example").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
    assert all(separator for _, separator, _ in pairs)
    return {name: value for name, _, value in pairs}


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the Dockerfile's instructions by stage, continued lines joined and comments dropped."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, list[tuple[str, str]]] = {}
    text = "\n".join(lines)
    before, _, text = text.partition("\nFROM ")
    bases = dict(line.removeprefix("ARG ").split("=", 1) for line in before.splitlines() if line.startswith("ARG "))
    name, lines = "", [re.sub(r"\$\{(\w+_IMAGE)\}", lambda match: bases[match[1]], f"FROM {text}")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            name = rest.rpartition(" AS ")[2]
            found[name] = []
        if word:
            found[name].append((word, " ".join(rest.split())))
    return found


def test_the_shape_is_whole() -> None:
    assert set(LONG_RUNNING) == {
        "postgres",
        "api-server",
        "scheduler",
        "dag-processor",
        "triggerer",
        "timeline-server",
        "spark-master",
        "spark-worker",
        "zookeeper",
        "kafka",
        "object-store",
    }
    assert set(SERVICES) - set(LONG_RUNNING) == {"migrate", "create-admin", "make-bucket", "spark-writer"}


@pytest.mark.parametrize("name", sorted(LONG_RUNNING))
def test_long_running_services_are_checked_and_restarted(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == "unless-stopped"
    # A busy machine is not an ill service: `up` ends when a service that others wait for is unhealthy.
    assert int(check["timeout"].removesuffix("s")) >= 30
    assert int(check["start_period"].removesuffix("s")) >= 300
    assert check["retries"] >= 3


def test_what_runs_once_is_not_checked_and_starts_only_where_it_is_needed() -> None:
    assert not [name for name in set(SERVICES) - set(LONG_RUNNING) if "healthcheck" in SERVICES[name]]
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        "spark-writer": ["writers"],
        "kafka": ["kafka"],
    }


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_services_have_few_rights_and_limits(name: str) -> None:
    service = SERVICES[name]
    user = re.fullmatch(r"(\d+):(\d+)", service["user"])
    assert user is not None
    assert int(user[1]) > 0
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode"} & set(service)
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))
    assert service["read_only"] or name == "kafka"
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= set(limits)
    # Docker refuses a container with more cores than the machine has.
    assert float(interpolated(limits["cpus"])) <= 2


def mounts_in_memory() -> list[tuple[str, str]]:
    return [(name, mount) for name, service in SERVICES.items() for mount in service.get("tmpfs", [])]


@pytest.mark.parametrize(("name", "mount"), mounts_in_memory())
def test_files_in_memory_have_a_limit_below_the_containers(name: str, mount: str) -> None:
    """Without one a full /tmp ends the container for its memory, instead of one write."""
    options = dict(option.partition("=")[::2] for option in mount.partition(":")[2].split(","))
    limit = interpolated(SERVICES[name]["deploy"]["resources"]["limits"]["memory"])
    mib = int(limit[:-1]) * {"m": 1, "g": 1024}[limit[-1]]
    assert int(options["size"].removesuffix("m")) <= mib
    assert options.get("uid", service_user(name)) == service_user(name)


def service_user(name: str) -> str:
    return str(SERVICES[name]["user"]).partition(":")[0]


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if service["image"].startswith("lake-")])
def test_volumes_of_own_images_belong_to_the_services_user(name: str) -> None:
    """A new volume has the owner of the folder in the image, which is root where there is none."""
    stage, owner = ("airflow", "airflow") if "airflow" in SERVICES[name]["image"] else ("spark", "spark")
    made = [value for word, value in stages()[stage] if word == "RUN" and f"install -d -o {owner} " in value]
    for volume in SERVICES[name].get("volumes", []):
        parts = volume.split(":")
        if not parts[0].startswith("."):
            folder = parts[-1].replace("/opt/airflow/", '"${AIRFLOW_HOME}/')
            assert folder in made[0], volume


@pytest.mark.parametrize("name", ["scheduler", "spark-master", "spark-worker", "spark-writer", "kafka"])
def test_libraries_that_a_jvm_unpacks_can_be_loaded(name: str) -> None:
    """A tmpfs is mounted noexec unless it says otherwise."""
    (tmp,) = [mount for mount in SERVICES[name]["tmpfs"] if mount.startswith("/tmp:")]
    assert "exec" in tmp.partition(":")[2].split(",")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_services_wait_for_what_they_need(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        wanted = "service_healthy" if other in LONG_RUNNING else "service_completed_successfully"
        assert how["condition"] == wanted


def test_health_checks_ask_the_right_thing() -> None:
    checks = {name: service["healthcheck"]["test"][1:] for name, service in LONG_RUNNING.items()}
    health = ["python", "/opt/lake/health.py"]
    assert checks["api-server"] == [*health, "manager", "http://127.0.0.1:8080/v1/hoodie/health"]
    assert checks["timeline-server"] == [*health, "timeline", "http://127.0.0.1:8090/v1/hoodie/timeline/health"]
    # `airflow jobs check` starts an Airflow each time: 2 to 3 s of CPU, minutes on a busy machine.
    for name in ("scheduler", "triggerer", "dag-processor"):
        part = name.replace("-", "_")
        assert checks[name] == [*health, part, "http://api-server:8080/api/v2/monitor/health"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned(name: str) -> None:
    image, _, tag = interpolated(SERVICES[name]["image"]).rpartition(":")
    assert image
    assert re.match(r"\d+\.\d+", tag)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_image_may_be_given_by_its_digest(name: str) -> None:
    """Either of a service of others, or all of what an own image is built from."""
    service = SERVICES[name]
    if "build" in service:
        arguments = dict(
            line.removeprefix("ARG ").split("=", 1) for line in re.findall(r"ARG \w+_IMAGE=.*", DOCKERFILE)
        )
        given = {key: f"${{{key}:-{value}}}" for key, value in arguments.items()}
        assert service["build"]["args"] == given | {"LAKE_MAVEN_REPOSITORY": "${LAKE_MAVEN_REPOSITORY:-}"}
        bases = re.findall(r"^FROM \$\{(\w+)\} AS \w+$", DOCKERFILE, re.MULTILINE)
        assert set(arguments) == set(bases)
        own = re.findall(r"^FROM (\w+) AS \S+$", DOCKERFILE, re.MULTILINE)
        assert set(own) <= set(stages())
        assert len(bases) + len(own) == DOCKERFILE.count("\nFROM ")
    elif not service["image"].startswith("lake-"):
        assert re.fullmatch(r"\$\{[A-Z_]+_IMAGE:-[^@}]+\}", service["image"])


def test_only_the_ui_is_published_and_on_the_loopback_address() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["api-server"]
    assert [interpolated(port) for port in published["api-server"]] == ["127.0.0.1:8080:8080"]
    assert COMPOSE["networks"]["lake"] == {"internal": True}
    assert [name for name, service in SERVICES.items() if "edge" in service["networks"]] == ["api-server"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_secret_is_written_down(name: str) -> None:
    for key, value in environment_of(SERVICES[name]).items():
        if _SECRET_NAME.search(key):
            assert ":?" in value, f"{key} must come from outside"
        assert "password" not in value.lower() or ":?" in value, f"{key} holds a password"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_secret_is_an_argument(name: str) -> None:
    """Processes can list the arguments of others: neither a command has one, nor options that Java takes as such."""
    service = SERVICES[name]
    words = [*service.get("command", []), *service.get("healthcheck", {}).get("test", [])]
    words += [value for key, value in environment_of(service).items() if key.endswith(("_OPTS", "_OPTIONS"))]
    assert not [word for word in words for match in _VARIABLE.finditer(str(word)) if _SECRET_NAME.search(match[1])]


def test_drivers_get_the_rpc_secret_from_a_file_of_their_own(tmp_path: Path) -> None:
    for name, service in SERVICES.items():
        if service["image"].startswith("lake-airflow") and "_SPARK_AUTH_SECRET" in environment_of(service):
            assert service["command"][:2] == ["bash", "/opt/lake/with_spark_secret.sh"], name
    shown = "stat -c %a $SPARK_CONF_DIR $SPARK_CONF_DIR/spark-defaults.conf; cat $SPARK_CONF_DIR/spark-defaults.conf"
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "SPARK_CONF_DIR": str(DOCKER / "spark")}
    command = ["bash", str(DOCKER / "with_spark_secret.sh"), "sh", "-c", shown]
    ran = subprocess.run(
        command, env=env | {"_SPARK_AUTH_SECRET": PLACEHOLDER}, capture_output=True, text=True, check=True, timeout=30
    )
    folder, file, *settings = ran.stdout.splitlines()
    assert (folder, file) == ("700", "600")
    assert settings[-1].split() == ["spark.authenticate.secret", PLACEHOLDER]
    assert "spark.authenticate true" in [" ".join(line.split()) for line in settings]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=30)
    assert (ran.returncode, "the RPC secret of Spark" in ran.stderr) == (1, True)


def test_env_example_names_every_variable_and_no_secret() -> None:
    example = env_example()
    used = {match[1]: match for match in _VARIABLE.finditer(COMPOSE_TEXT) if match[1]}
    assert set(used) == set(example)
    for name, match in used.items():
        assert match[2] in (":-", ":?"), f"{name} needs a default or a message"
        # What must be given is empty here; what has a default shows the same one.
        assert example[name] == (match[3] if match[2] == ":-" else "")
    assert (DOCKER / ".gitignore").read_text(encoding="utf-8").split() == [".env"]


def test_lake_settings_are_options_that_exist_and_fit() -> None:
    options = get_provider_info()["config"]["lake"]["options"]
    given = {
        key.removeprefix("AIRFLOW__LAKE__").lower(): interpolated(value)
        for service in SERVICES.values()
        for key, value in environment_of(service).items()
        if key.startswith("AIRFLOW__LAKE__")
    }
    assert given
    assert set(given) <= set(options)
    settings = LakeSettings.from_options(given)
    require_allowed("s3a://lake/tables/orders", settings.allowed_roots)
    assert settings.storage_conn_ids == ("s3a://lake=lake_s3",)


def test_each_container_has_the_tokens_that_it_uses_and_no_others() -> None:
    def having(kind: str) -> set[str]:
        value = f"${{LAKE_{kind}_TOKENS:"
        return {name for name, one in SERVICES.items() if any(value in text for text in environment_of(one).values())}

    assert having("CALLBACK") == {"api-server", "spark-writer"}
    assert having("SERVICE") == {"api-server", "scheduler", "triggerer", "timeline-server"}


def test_all_airflow_services_agree_on_the_settings() -> None:
    airflow = [
        {
            key: value
            for key, value in environment_of(service).items()
            if key.startswith("AIRFLOW") and not key.endswith("_TOKENS")
        }
        for name, service in SERVICES.items()
        if service["image"].startswith("lake-airflow") and name != "make-bucket"
    ]
    assert len(airflow) == 7
    assert all(environment == airflow[0] for environment in airflow)
    for key in ("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", "AIRFLOW_CONN_LAKE_S3", "AIRFLOW_CONN_SPARK_DEFAULT"):
        assert json.loads(airflow[0][key])


def commands() -> list[list[str]]:
    lines = [
        command
        for service in SERVICES.values()
        for command in (service.get("command", []), service.get("healthcheck", {}).get("test", [])[1:])
    ]
    wrapper = ["bash", "/opt/lake/with_spark_secret.sh"]
    plain = [line[2:] if line[:2] == wrapper else line for line in lines]
    return [[str(part) for part in line[1:]] for line in plain if line and line[0] == "airflow"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_airflow_commands_exist(words: list[str]) -> None:
    known: Any = [*core_commands, *get_cli_commands()]
    rest = list(words)
    while True:
        by_name = {command.name: command for command in known}
        assert rest[0] in by_name, f"airflow has no {rest[0]}"
        command = by_name[rest.pop(0)]
        if isinstance(command, ActionCommand):
            break
        assert isinstance(command, GroupCommand)
        known = command.subcommands
    flags = {flag for argument in command.args for flag in argument.flags}
    assert {word for word in rest if word.startswith("--")} <= flags


def test_referenced_files_and_volumes_exist() -> None:
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
                assert volume.endswith(":ro")
            elif not source.startswith("/"):
                used.add(source)
        if "build" in service:
            build = service["build"]
            assert (DOCKER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
            assert build["target"] in stages()
    assert used == set(COMPOSE["volumes"])


def test_every_own_image_is_built_once() -> None:
    built = [service["image"] for service in SERVICES.values() if "build" in service]
    assert len(built) == len(set(built))
    assert set(built) == {service["image"] for service in SERVICES.values() if service["image"].startswith("lake-")}


def test_tables_file_is_understood_and_has_a_lock() -> None:
    config = load_tables_file(str(DOCKER / "lake" / "tables.yaml"))
    options = config.defaults.hudi_options
    assert find_lock_problem(options) is None
    host, _, port = options["hoodie.write.lock.zookeeper.url"].partition(":")
    assert host in SERVICES
    assert f"clientPort={port}" in (DOCKER / "zoo.cfg").read_text(encoding="utf-8").split()


def test_dockerfile_bases_are_pinned_and_images_run_without_root() -> None:
    found = stages()
    assert set(found) == {"jars", "spark", "airflow", "airflow-kubernetes"}
    for instructions in found.values():
        base = instructions[0][1].split(" AS ")[0]
        assert base in found or re.search(r":(slim-)?\d+\.\d+\.\d+", base), base
    # The last stage takes the user of the one that it begins with.
    assert not [value for word, value in found["airflow-kubernetes"] if word == "USER"]
    for name in ("spark", "airflow"):
        users = [value for word, value in found[name] if word == "USER"]
        assert users
        assert users[-1].partition(":")[0] not in ("root", "0")


def test_dockerfile_fetches_nothing_unchecked_and_holds_no_secret() -> None:
    for instructions in stages().values():
        for word, value in instructions:
            assert word != "ADD"
            assert not re.search(r"https?://|\bcurl\b|\bwget\b", value)
            assert word not in ("ENV", "ARG") or not re.search(r"PASSWORD|SECRET|TOKEN", value)
            if word == "RUN" and "pip install" in value:
                assert re.search(r" -[cr] /build/|--no-deps", value), "versions must be pinned"


def test_dockerfile_copies_what_is_there_and_not_ignored() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    assert "**" in ignore
    copied = set()
    for instructions in stages().values():
        for word, value in instructions:
            parts = [part for part in value.split() if not part.startswith("--chown")]
            if word == "COPY" and not parts[0].startswith("--from="):
                copied |= {part.rstrip("/") for part in parts[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    assert all(any(source == entry or source.startswith(f"{entry}/") for entry in allowed) for source in copied)
    assert all(any(source == entry or source.startswith(f"{entry}/") for source in copied) for entry in allowed)


def test_versions_agree_with_the_tested_ones() -> None:
    tested = (ROOT / "constraints" / "airflow.txt").read_text(encoding="utf-8").splitlines()
    airflow_version = next(line.partition("==")[2] for line in tested if line.startswith("apache-airflow=="))
    assert f"\nARG AIRFLOW_IMAGE=apache/airflow:slim-{airflow_version}-python3.11\n" in DOCKERFILE
    pins = [line for line in (DOCKER / "airflow.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.]+", line) for line in pins)
    assert f"apache-airflow=={airflow_version}" in pins
    # Every package of the tests is in the image, but for what only tests and HDFS need.
    image = {line.partition("==")[0] for line in pins}
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    required = pyproject.partition("dependencies = [")[2].partition("]")[0]
    assert {name.lower() for name in re.findall(r'"([A-Za-z0-9.-]+)', required)} <= image


def test_jars_are_the_ones_that_are_checked() -> None:
    stage = DOCKERFILE.partition(" AS jars\n")[2].partition("\nFROM")[0]
    bundle = hudi_bundle.jar_of(hudi_bundle.VERSION).name
    assert bundle in stage
    assert set(re.findall(r"\S+\.jar", stage)) == {bundle, *hudi_bundle.S3A} <= set(checksums())


def test_the_build_downloads_jars_with_nothing_but_python(tmp_path: Path) -> None:
    for name in re.findall(r"local_stack/(\S+)", DOCKERFILE.partition(" AS jars\n")[2].partition("\nRUN")[0]):
        (tmp_path / name).write_bytes((ROOT / "local_stack" / name).read_bytes())
    command = [sys.executable, "-I", "-S", str(tmp_path / "maven_central.py"), "own.jar", "--into", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == f"the checksum of own.jar is not known: add it to {tmp_path / 'jars.sha256'}\n"


# --- health.py ---------------------------------------------------------------

TOKEN = "a-service-token"
ANSWERS = {
    "/ok": (200, b'{"status": "ok"}'),
    "/healthy": (200, b'{"status": "healthy"}'),
    "/alive": (200, b'{"status": "ALIVE"}'),
    "/standby": (200, b'{"status": "STANDBY"}'),
    "/page": (200, b"<html>Airflow</html>"),
    "/parts": (200, b'{"scheduler": {"status": "healthy"}, "triggerer": {"status": "unhealthy"}}'),
    "/list": (200, b"[]"),
    "/down": (503, b'{"status": "ok"}'),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        if self.path == "/healthy" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status = 401
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def health() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lake_docker_health", DOCKER / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "path", "is_healthy"),
    [
        pytest.param("manager", "/ok", True, id="manager"),
        pytest.param("manager", "/page", False, id="plugin-not-loaded"),
        pytest.param("manager", "/list", False, id="no-object"),
        pytest.param("manager", "/down", False, id="error"),
        pytest.param("timeline", "/healthy", True, id="timeline-server"),
        pytest.param("timeline", "/ok", False, id="another-server"),
        pytest.param("spark-master", "/alive", True, id="master"),
        pytest.param("spark-master", "/standby", False, id="master-standing-by"),
        pytest.param("http", "/page", True, id="any-answer"),
        pytest.param("scheduler", "/parts", True, id="scheduler"),
        pytest.param("triggerer", "/parts", False, id="triggerer-without-heartbeat"),
        pytest.param("dag_processor", "/parts", False, id="part-that-is-not-named"),
        pytest.param("scheduler", "/list", False, id="no-parts"),
        pytest.param("nonsense", "/ok", False, id="unknown-kind"),
    ],
)
def test_health_distinguishes_well_from_ill(
    health: ModuleType, server: str, monkeypatch: pytest.MonkeyPatch, kind: str, path: str, is_healthy: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__LAKE__SERVICE_TOKENS", f"{TOKEN}, another-token")
    assert (health.main([kind, server + path]) is None) is is_healthy


def test_health_answers_before_docker_ends_the_check(health: ModuleType) -> None:
    shortest = min(int(service["healthcheck"]["timeout"].removesuffix("s")) for service in LONG_RUNNING.values())
    assert 20 <= health.TIMEOUT_S < shortest


def test_health_says_that_a_token_is_missing(health: ModuleType, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__LAKE__SERVICE_TOKENS", raising=False)
    assert "401" in health.main(["timeline", f"{server}/healthy"])


def test_health_says_that_no_reader_listens(health: ModuleType) -> None:
    assert "refused" in health.main(["http", "http://127.0.0.1:1/"])
