"""Commands for setting up: `airflow lake init`, `tables-file` and `dag-bundles`. They write nothing unasked."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.configuration import conf, ensure_secrets_loaded
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.cli.command import print_document, print_rows, run_command, warn
from airflow_lake_provider.cli.tables import find_table
from airflow_lake_provider.cli.writer_settings import (
    flink_text,
    hudi_defaults_text,
    lock_options,
    spark_text,
    suggest_lock,
    writer_options,
)
from airflow_lake_provider.config.tables_config import find_names_of_all_teams, pattern_of_path
from airflow_lake_provider.config.tables_file import (
    SCHEMA_FILE,
    find_mistakes,
    parse_tables_file,
    read_tables_file,
    schema_text,
)
from airflow_lake_provider.errors import ConfigError, TableNotFoundError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.http import MOUNT_PATH
from airflow_lake_provider.hudi.base_path import FoundTable, discover_tables, is_below, normalise_root
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.manager.runs.dag_problems import find_dag_problems
from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
from airflow_lake_provider.plugins.shipped import BUNDLE_NAME, with_lake_bundle

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_lake_provider.config.settings import LakeSettings


JAVA_VERSIONS = (11, 17)
"""Spark 3.5 runs on 8 as well, but the classes of Hudi's bundle need 11."""


def init(args: Namespace) -> None:
    """Check this installation, then print what completes it; exit code 1 when something is wrong."""
    run_command(args, _init)


def _init(args: Namespace) -> None:
    settings = load_settings()
    if args.hudi_defaults:
        lock = args.lock_provider or suggest_lock(settings.allowed_roots)
        print(hudi_defaults_text(_writer_options(lock, settings)), end="")
        return
    tables = _given_tables(args, settings)
    rows = [*_check_airflow(settings), *_check_spark(settings), *_check_settings(settings, tables)]
    print_rows(args, rows, _check_text)
    if args.output != "text":
        if any(row.state == WRONG for row in rows):
            raise SystemExit(1)
        return
    roots = [args.discover] if args.discover else []
    lock = args.lock_provider or suggest_lock(
        [*roots, *(table.base_path for table in tables)] or settings.allowed_roots
    )
    sections = [("airflow.cfg", _lake_section(settings, tables)), ("the tables file", _tables_text(args, tables, lock))]
    as_text = flink_text if args.engine == "flink" else spark_text
    writer = as_text(_writer_options(lock, settings))
    sections += [(f"the writer of {table}", writer) for table in args.table or ()]
    for what, text in sections:
        print(f"\n--- for {what}\n\n{text}", end="")
    _offer_tables_file(args, sections[1][1])
    if any(row.state == WRONG for row in rows):
        raise SystemExit(1)


OK = "ok"
WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class CheckOfInstallation:
    """One check, with what was found and what repairs it."""

    check: str
    state: str
    found: str
    repair: str


def _row_of(check: str, problem: str, found: str, repair: str = "") -> CheckOfInstallation:
    return CheckOfInstallation(check, WRONG if problem else OK, problem or found, repair)


def _check_text(row: CheckOfInstallation) -> str:
    repair = f"\n{'':<22}{row.repair}" if row.state != OK and row.repair else ""
    return f"{row.check:<14}{row.state:<8}{row.found}{repair}"


def _check_airflow(settings: LakeSettings) -> list[CheckOfInstallation]:
    from airflow import __version__ as version

    registry = open_registry()
    source = open_tables(settings)
    with suppress(ConfigError):  # The tables file has a row of its own.
        source.load()
    try:
        count = len(registry.list_tables(1000))
        with registry.transaction() as session:
            dags = AirflowRunGateway().find_lake_dags(session)
        problems = find_dag_problems(dags, registry.now_ms(), searches=source.searches)
        database = _row_of(
            "database", "", f"the registry has {count} tables" if count < 1000 else "1,000 tables or more"
        )
    except SQLAlchemyError as error:
        said = str(error).splitlines()[0]
        return [_row_of("database", f"the provider's tables cannot be read: {said}", "", "run airflow db migrate")]
    rows = [_row_of("DAGs", problem, "") for problem in problems] or [_row_of("DAGs", "", "present and unpaused")]
    configured = list(conf.getjson("dag_processor", "dag_bundle_config_list") or [])  # type: ignore[arg-type]
    has_ours = BUNDLE_NAME in [bundle.get("name") for bundle in configured]
    names = ", ".join(str(bundle.get("name")) for bundle in configured)
    bundles = _row_of(
        "DAG bundles",
        "" if has_ours else f"the shipped DAGs are not among them: {names or 'none'}",
        names,
        "add the option below to airflow.cfg; it keeps your bundles",
    )
    is_new = tuple(int(part) for part in version.split(".")[:2]) >= (3, 3)
    return [*rows, _row_of("Airflow", "" if is_new else f"{version}, needed is 3.3", version), database, bundles]


def _check_spark(settings: LakeSettings) -> list[CheckOfInstallation]:
    return [_check_java(), _check_submit(), _check_jars(settings), _check_connection(settings.spark_conn_id)]


def _check_java() -> CheckOfInstallation:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    repair = "install Java 17 where services run, and set JAVA_HOME there"
    try:
        answer = subprocess.run([program or "java", "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return _row_of("Java", f"none on this host ({error})", "", repair)
    said = (answer.stderr or answer.stdout).splitlines()[0]
    version = re.search(r'"(?:1\.)?(\d+)', said)
    is_known = version is not None and int(version.group(1)) in JAVA_VERSIONS
    return _row_of("Java", "" if is_known else f"{said}: Spark 3.5 with Hudi's bundle runs on 11 and 17", said, repair)


def _check_submit() -> CheckOfInstallation:
    home = os.environ.get("SPARK_HOME")
    found = shutil.which("spark-submit", path=str(Path(home) / "bin")) if home else shutil.which("spark-submit")
    where = f"SPARK_HOME={home}" if home else "the PATH"
    repair = "install Spark 3.5 where services run, in an environment of its own, and set SPARK_HOME there"
    return _row_of("Spark", "" if found else f"no spark-submit in {where} of this host", str(found), repair)


def _check_jars(settings: LakeSettings) -> CheckOfInstallation:
    repair = "set [lake] spark_jars to hudi-spark3.5-bundle_2.12 1.2.0, or spark_packages to its coordinates"
    if not settings.spark_jars and not settings.spark_packages:
        return _row_of("jars", "neither [lake] spark_jars nor spark_packages names the Hudi bundle", "", repair)
    jars = [jar.strip() for jar in settings.spark_jars.split(",") if jar.strip()]
    missing = [jar for jar in jars if "://" not in jar and not Path(jar).exists()]
    problem = f"not on this host: {', '.join(missing)}" if missing else ""
    return _row_of("jars", problem, ", ".join([*jars, settings.spark_packages]).strip(", "), repair)


def _check_connection(conn_id: str) -> CheckOfInstallation:
    for backend in ensure_secrets_loaded():
        try:
            connection = backend.get_connection(conn_id)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            return _row_of("connection", f"{conn_id} cannot be read: {type(error).__name__}: {error}", "")
        if connection is not None:
            return _row_of("connection", "", f"{conn_id}: {connection.host or 'no host'}")
    repair = (
        f"airflow connections add {conn_id} --conn-type spark --conn-host yarn    (or local[2], spark://..., k8s://...)"
    )
    return _row_of("connection", f"{conn_id} does not exist: it says where Spark jobs run", "", repair)


def _check_settings(settings: LakeSettings, tables: tuple[FoundTable, ...]) -> list[CheckOfInstallation]:
    tokens = [name for name in ("callback_tokens", "service_tokens") if not getattr(settings, name)]
    outside = [table.base_path for table in tables if not is_below(table.base_path, settings.allowed_roots)]
    roots = "empty: every table is refused" if not settings.allowed_roots else ""
    roots = roots or (f"not below them: {', '.join(outside[:3])}" if outside else "")
    path = settings.tables_file
    text = read_tables_file(path)
    mistakes = find_mistakes(text, path)
    # Without a tokens file there are no teams.
    is_shared = bool(settings.tokens_file) and not mistakes
    names = find_names_of_all_teams(parse_tables_file(text, path).entries) if is_shared else ()
    shared = f"sinks for any team's table that is named {', '.join(names)}" if names else ""
    return [
        _row_of("tokens", f"[lake] {' and '.join(tokens)} empty" if tokens else "", "set", "see [lake] below"),
        _row_of("allowed roots", roots, ", ".join(settings.allowed_roots), "see [lake] below"),
        _row_of(
            "tables file", "; ".join(mistakes), path or "none: the defaults hold", "airflow lake tables-file --check"
        ),
        _row_of(
            "names", shared, "no entry with sinks goes by a name alone", "give each such entry a base_path as well"
        ),
    ]


def _given_tables(args: Namespace, settings: LakeSettings) -> tuple[FoundTable, ...]:
    open_table = open_with_connections(settings.storage_conn_ids)
    found = []
    for table in args.table or ():
        base_path = find_table(table)
        try:
            name = load_table_properties(open_table(base_path)).name
        except TableNotFoundError:
            name = base_path.rsplit("/", 1)[-1]  # its writer will make it
        found.append(FoundTable(base_path, name))
    if args.discover:
        below = discover_tables(normalise_root(args.discover), open_table, args.depth)
        for problem in below.problems:
            warn(f"! {problem}")
        found += below.tables
    return tuple(found)


def _lake_section(settings: LakeSettings, tables: tuple[FoundTable, ...]) -> str:
    lines = ["[lake]"]
    for name in ("callback_tokens", "service_tokens"):
        kept = "; as it is" if getattr(settings, name) else f"{name} = {secrets.token_urlsafe(24)}"
        lines.append(kept if kept.startswith(name) else f"# {name}{kept}")
    parents = sorted({table.base_path.rsplit("/", 1)[0] or "/" for table in tables})
    if not settings.allowed_roots:
        # A writer may name a folder so that what is behind its comma would be a root of its choice.
        lines += [f"# allowed_roots cannot hold {json.dumps(parent)}" for parent in parents if "," in parent]
    roots = settings.allowed_roots or [parent.replace("%", "%%") for parent in parents if "," not in parent]
    lines.append(f"allowed_roots = {', '.join(roots) or '/the/root/of/your/tables'}")
    lines.append(f"tables_file = {settings.tables_file or '/etc/airflow/lake.yaml'}")
    jars = settings.spark_jars or "/opt/jars/hudi-spark3.5-bundle_2.12-1.2.0.jar"
    lines.append(f"spark_packages = {settings.spark_packages}" if settings.spark_packages else f"spark_jars = {jars}")
    return "\n".join([*lines, "", _bundles_section()])


def _bundles_section() -> str:
    """Return Airflow's option with this installation's bundles and the shipped DAGs."""
    bundles = with_lake_bundle(list(conf.getjson("dag_processor", "dag_bundle_config_list") or []))  # type: ignore[arg-type]
    shown = ",\n".join(f"    {json.dumps(bundle)}" for bundle in bundles)
    return f"[dag_processor]\ndag_bundle_config_list = [\n{shown}\n    ]\n"


def _tables_text(args: Namespace, tables: tuple[FoundTable, ...], lock: str) -> str:
    lines = [
        "defaults:",
        "  mode: observe              # decide and show what is due, start nothing; then manage, table by table",
        "  hudi_options:              # the writers' lock provider, with its settings",
        *(f"    {key}: {json.dumps(value)}" for key, value in lock_options(lock).items()),
        "tables:" if tables or args.discover else "tables: []",
    ]
    for table in tables:
        lines += [
            f"  - base_path: {json.dumps(pattern_of_path(table.base_path))}",
            f"    name: {json.dumps(table.name)}",
        ]
    if args.discover:
        lines += [f"  - discover: {json.dumps(args.discover)}", f"    discover_depth: {args.depth}"]
    return "\n".join([*lines, ""])


def _writer_options(lock: str, settings: LakeSettings) -> dict[str, str]:
    url = settings.manager_url or conf.get("api", "base_url", fallback="") or "http://AIRFLOW:8080"
    return writer_options(f"{url.rstrip('/')}{MOUNT_PATH}/callback", lock)


def _offer_tables_file(args: Namespace, text: str) -> None:
    if not args.write:
        return
    path = Path(args.write)
    if path.exists():
        raise ConfigError(f"{path} exists already: nothing was written")
    if not sys.stdin.isatty() or input(f"\nwrite the tables file to {path}? [y/N] ").strip().lower() not in {
        "y",
        "yes",
    }:
        print("nothing was written")
        return
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {path}")


# --- `airflow lake tables-file`: check a tables file before it is used, and print its JSON schema


def tables_file(args: Namespace) -> None:
    """Print the schema, or check the file together with the Variable over it; exit code 1 if wrong."""
    if args.schema:
        print(schema_text(), end="")
        return
    run_command(args, _check)


def _check(args: Namespace) -> None:
    settings = load_settings()
    path = args.check or settings.tables_file
    mistakes = find_mistakes(read_tables_file(path), path)
    if mistakes:
        raise ConfigError("\n".join([f"{len(mistakes)} mistakes:", *mistakes] if len(mistakes) > 1 else mistakes))
    source = open_tables(settings.replace(tables_file=path))
    tables = source.load()
    if source.problem:
        raise ConfigError(source.problem)
    if args.output != "text":
        row = {"path": path, "entries": len(tables.entries), "overrides": len(tables.overrides)}
        print_document(args, [row], [row])
        return
    print(f"{path or 'no tables file: the defaults'} is right: {len(tables.entries)} entries")
    if source.has_overrides:
        print(f"Variable {settings.tables_variable} over it is right: {len(tables.overrides)} entries")
    for discovery in tables.discoveries:
        how = f"as {discovery.metastore} names them" if discovery.metastore else f"{discovery.depth} levels down"
        print(f"tables are searched for below {discovery.root}, {how}")
    print(f"schema for editors: {SCHEMA_FILE}")


# --- `airflow lake dag-bundles`: the setting that adds the shipped DAGs to Airflow's bundles. Changes nothing


def dag_bundles(args: Namespace) -> None:
    """Print this installation's `[dag_processor] dag_bundle_config_list` with the shipped DAGs added."""
    print(_bundles_section(), end="")
