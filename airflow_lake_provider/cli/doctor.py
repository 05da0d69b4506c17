"""`airflow lake doctor`: what is stuck on a table, what it holds up, and its repair; `check-writer`: its writers.

`airflow lake init`: what the installation lacks.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf, ensure_secrets_loaded
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.cli.command import moment, print_rows, run_command, warn
from airflow_lake_provider.cli.tables import find_table, list_all_tables, start_service_run
from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.config.tables_file import find_mistakes, read_tables_file
from airflow_lake_provider.doctor.repairs import STILL_STUCK, load_records
from airflow_lake_provider.doctor.treatment import TableDoctor
from airflow_lake_provider.errors import ConfigError, RepairRefusedError, TableNotFoundError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.http import MOUNT_PATH
from airflow_lake_provider.hudi.base_path import FoundTable, discover_tables, is_below, normalise_root, table_id_of
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.manager.scheduling import find_net_problems
from airflow_lake_provider.manager.writers import WriterChecks, recorded_report, row_to_dict
from airflow_lake_provider.planner.conformance import Conformity
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.plugins.dag_runs import AirflowInstanceGateway, AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
from airflow_lake_provider.plugins.shipped import BUNDLE_NAME, with_lake_bundle
from airflow_lake_provider.timeline_server.cache import SharedTimelines

if TYPE_CHECKING:
    from argparse import Namespace

    from sqlalchemy import RowMapping

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Repair, ServiceCall
    from airflow_lake_provider.storage.table_storage import Storage


def doctor(args: Namespace) -> None:
    """Print every problem of a table, or repair one; exit code 1 when something is (still) stuck."""
    run_command(args, _doctor)


def _doctor(args: Namespace) -> None:
    base_path = find_table(args.table)
    settings = load_settings()
    storage = open_with_connections(settings.storage_conn_ids)(base_path)
    if args.history:
        _print_history(args, storage)
        return
    name = load_table_properties(storage).name
    policy = open_tables(settings).load().policy_for(base_path, name)

    def start(call: ServiceCall) -> str:
        return start_service_run(base_path, name, call, policy)

    repairer = TableDoctor(
        storage,
        policy,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        now_ms=lambda: int(time.time() * 1000),
        start_service=start,
        reads_all=True,
    )
    found = repairer.examine()
    if args.repair:
        _repair(args, repairer, found)
        return
    print_rows(args, [_row(finding, repair, policy.doctor.repairs) for finding, repair in found], _finding_text)
    if found:
        raise SystemExit(1)
    if args.output == "text":
        print(f"nothing is stuck at {base_path}")


def _repair(args: Namespace, repairer: TableDoctor, found: tuple[tuple[Finding, Repair], ...]) -> None:
    kind = _kind_of(args.repair)
    wanted = [repair for finding, repair in found if finding.kind is kind and args.instant in {None, finding.instant}]
    if not wanted:
        raise RepairRefusedError(f"there is no problem of kind {kind} to repair")
    if args.dry_run:
        rows = [{"kind": r.kind, "instant": r.instant, "would": _plan_text(r)} for r in wanted]
        print_rows(args, rows, lambda row: f"{row['kind']} {row['instant']}: would {row['would']}")
        return
    records = [asdict(repairer.repair(repair)) for repair in wanted]
    print_rows(args, records, _record_text)
    if any(record["result"] == STILL_STUCK for record in records):
        raise SystemExit(1)


def _kind_of(text: str) -> StuckKind:
    try:
        return StuckKind(text)
    except ValueError as error:
        raise RepairRefusedError(f"{text!r} is not a kind of problem; known are {', '.join(StuckKind)}") from error


def _row(finding: Finding, repair: Repair, allowed: tuple[StuckKind, ...]) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "instant": finding.instant,
        "message": finding.message,
        "holds_up": finding.holds_up,
        "blocks": list(finding.blocks),
        "repair": finding.repair,
        "doctor_can": _plan_text(repair),
        "allowed": finding.kind in allowed,
    }


def _plan_text(repair: Repair) -> str:
    if repair.refusal:
        return f"do nothing: {repair.refusal}"
    if repair.call is not None:
        return f"{repair.does} (a run of {repair.call.service})"
    return f"{repair.does} ({', '.join(file.path for file in repair.files)})"


def _finding_text(row: dict[str, Any]) -> str:
    lines = [f"{row['kind']}: {row['message']}", f"  holds up: {row['holds_up']}"]
    lines += [f"  blocked:  {line}" for line in row["blocks"]]
    lines.append(f"  repair:   {row['repair']}")
    hint = f"airflow lake doctor TABLE --repair {row['kind']}"
    is_possible = not row["doctor_can"].startswith("do nothing")
    first = "" if row["allowed"] else f"add {row['kind']} to doctor.repairs of the tables file, then "
    lines.append(f"  doctor:   can {row['doctor_can']}{f'; {first}{hint}' if is_possible else ''}")
    return "\n".join(lines)


def _print_history(args: Namespace, storage: Storage) -> None:
    records = [asdict(record) for record in load_records(storage)]
    print_rows(args, records, _record_text)
    if not records and args.output == "text":
        print(f"there are no repairs of {storage.base_path}")


def _record_text(record: dict[str, Any]) -> str:
    result = record["result"] or "begun, and not ended: the repairer died"
    lines = [f"{record['at']} {record['by']}: {record['kind']} {record['instant']}".rstrip()]
    lines += [f"  evidence: {line}" for line in record["evidence"]]
    lines.append(f"  did:      {record['does']}")
    lines += [f"  moved:    {file['path']} to {file['kept_as']}" for file in record["removed"]]
    return "\n".join([*lines, f"  result:   {result}"])


# --- `airflow lake check-writer`: what table and notices show of the writers' settings. Changes nothing


def check_writer(args: Namespace) -> None:
    """Print what a table requires of its writers and whether they meet it; exit code 1 when something is broken."""
    run_command(args, _check_all if args.all else _check_writer)


def _check_writer(args: Namespace) -> None:
    if not args.table:
        raise ConfigError("name a table (base path, name or id), or give --all")
    base_path = find_table(args.table)
    settings, registry = load_settings(), open_registry()
    views = TableViewCache(SharedTimelines(open_table=open_with_connections(settings.storage_conn_ids)))
    view = views.refresh(base_path)
    policy = open_tables(settings).load().policy_for(base_path, view.properties.name)
    checks = WriterChecks(registry, views, AirflowInstanceGateway())
    report = checks.check(registry.find(table_id_of(base_path)), view, policy, registry.now_ms())
    print_rows(args, [row_to_dict(row) for row in report.rows], _requirement_text)
    if report.broken():
        raise SystemExit(1)


def _requirement_text(row: dict[str, Any]) -> str:
    lines = [f"{row['requirement']:<16} {row['state']:<8} {row['evidence']}"]
    if row["state"] != Conformity.MET and row["settings"]:
        lines.append(f"{'':<16} set      {', '.join(row['settings'])}")
    if row["state"] == Conformity.BROKEN:
        blocked = f"; blocks {', '.join(row['blocks'])}" if row["blocks"] else ""
        lines.append(f"{'':<16} endangers {row['endangers']}{blocked}")
    return "\n".join(lines)


def _check_all(args: Namespace) -> None:
    rows = [_line_of(row) for row in list_all_tables(open_registry())]
    print_rows(args, rows, _line_text)
    if any(row["broken"] for row in rows):
        raise SystemExit(1)
    if not rows and args.output == "text":
        print("no table is registered; `airflow lake check-writer PATH` checks one that is not")


def _line_of(row: RowMapping) -> dict[str, Any]:
    report, checked_ms = recorded_report(row)
    broken = report.broken()
    return {
        "table": row["table_name"],
        "base_path": row["base_path"],
        "checked": moment(checked_ms or None),
        "broken": ", ".join(found.requirement for found in broken),
        "settings": ", ".join(dict.fromkeys(setting for found in broken for setting in found.settings)),
    }


def _line_text(row: dict[str, Any]) -> str:
    state = f"broken: {row['broken']}; set {row['settings']}" if row["broken"] else "nothing is broken"
    if row["checked"] == "-":
        state = "not checked yet"
    return f"{row['table']:<24} {row['base_path']}  checked {row['checked']}  {state}"


# --- `airflow lake init`: what this installation lacks, and the texts that complete it. Writes nothing unasked

JAVA_VERSIONS = (11, 17)
"""What Spark 3.5 runs on."""


def init(args: Namespace) -> None:
    """Check this installation, then print what completes it; exit code 1 when something is wrong."""
    run_command(args, _init)


def _init(args: Namespace) -> None:
    settings = load_settings()
    tables = _given_tables(args, settings)
    rows = [*_check_airflow(), *_check_spark(settings), *_check_settings(settings, tables)]
    print_rows(args, rows, _check_text)
    if args.output != "text":
        if any(row["state"] == WRONG for row in rows):
            raise SystemExit(1)
        return
    sections = [("airflow.cfg", _lake_section(settings, tables)), ("the tables file", _tables_text(args, tables))]
    sections += [(f"the writer of {table}", _writer_text(args, settings)) for table in args.table or ()]
    for what, text in sections:
        print(f"\n--- for {what}\n\n{text}", end="")
    _offer_tables_file(args, sections[1][1])
    if any(row["state"] == WRONG for row in rows):
        raise SystemExit(1)


OK, WRONG = "ok", "WRONG"


def _row_of(check: str, problem: str, found: str, repair: str = "") -> dict[str, Any]:
    return {"check": check, "state": WRONG if problem else OK, "found": problem or found, "repair": repair}


def _check_text(row: dict[str, Any]) -> str:
    repair = f"\n{'':<22}{row['repair']}" if row["state"] != OK and row["repair"] else ""
    return f"{row['check']:<14}{row['state']:<8}{row['found']}{repair}"


def _check_airflow() -> list[dict[str, Any]]:
    from airflow import __version__ as version

    registry = open_registry()
    try:
        count = len(registry.list_tables(1000))
        with registry.transaction() as session:
            problems = find_net_problems(AirflowRunGateway().find_net(session), registry.now_ms())
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


def _check_spark(settings: LakeSettings) -> list[dict[str, Any]]:
    return [_check_java(), _check_submit(), _check_jars(settings), _check_connection(settings.spark_conn_id)]


def _check_java() -> dict[str, Any]:
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
    return _row_of("Java", "" if is_known else f"{said}: Spark 3.5 runs on 8, 11 and 17", said, repair)


def _check_submit() -> dict[str, Any]:
    home = os.environ.get("SPARK_HOME")
    found = shutil.which("spark-submit", path=str(Path(home) / "bin")) if home else shutil.which("spark-submit")
    where = f"SPARK_HOME={home}" if home else "the PATH"
    repair = "install Spark 3.5 where services run, in an environment of its own, and set SPARK_HOME there"
    return _row_of("Spark", "" if found else f"no spark-submit in {where} of this host", str(found), repair)


def _check_jars(settings: LakeSettings) -> dict[str, Any]:
    repair = "set [lake] spark_jars to hudi-spark3.5-bundle_2.12 1.2.0, or spark_packages to its coordinates"
    if not settings.spark_jars and not settings.spark_packages:
        return _row_of("jars", "neither [lake] spark_jars nor spark_packages names the Hudi bundle", "", repair)
    jars = [jar.strip() for jar in settings.spark_jars.split(",") if jar.strip()]
    missing = [jar for jar in jars if "://" not in jar and not Path(jar).exists()]
    problem = f"not on this host: {', '.join(missing)}" if missing else ""
    return _row_of("jars", problem, ", ".join([*jars, settings.spark_packages]).strip(", "), repair)


def _check_connection(conn_id: str) -> dict[str, Any]:
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


def _check_settings(settings: LakeSettings, tables: tuple[FoundTable, ...]) -> list[dict[str, Any]]:
    tokens = [name for name in ("callback_tokens", "service_tokens") if not getattr(settings, name)]
    outside = [table.base_path for table in tables if not is_below(table.base_path, settings.allowed_roots)]
    roots = "empty: every table is refused" if not settings.allowed_roots else ""
    roots = roots or (f"not below them: {', '.join(outside[:3])}" if outside else "")
    path = settings.tables_file
    mistakes = find_mistakes(read_tables_file(path), path)
    return [
        _row_of("tokens", f"[lake] {' and '.join(tokens)} empty" if tokens else "", "set", "see [lake] below"),
        _row_of("allowed roots", roots, ", ".join(settings.allowed_roots), "see [lake] below"),
        _row_of(
            "tables file", "; ".join(mistakes), path or "none: the defaults hold", "airflow lake tables-file --check"
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
    lines.append(f"allowed_roots = {', '.join(settings.allowed_roots or parents) or '/the/root/of/your/tables'}")
    lines.append(f"tables_file = {settings.tables_file or '/etc/airflow/lake.yaml'}")
    jars = settings.spark_jars or "/opt/jars/hudi-spark3.5-bundle_2.12-1.2.0.jar"
    lines.append(f"spark_packages = {settings.spark_packages}" if settings.spark_packages else f"spark_jars = {jars}")
    bundles = with_lake_bundle(list(conf.getjson("dag_processor", "dag_bundle_config_list") or []))  # type: ignore[arg-type]
    shown = ",\n".join(f"    {json.dumps(bundle)}" for bundle in bundles)
    return "\n".join([*lines, "", "[dag_processor]", f"dag_bundle_config_list = [\n{shown}\n    ]", ""])


def _tables_text(args: Namespace, tables: tuple[FoundTable, ...]) -> str:
    lines = [
        "defaults:",
        "  mode: observe              # decide and show what is due, start nothing; then manage, table by table",
        "  hudi_options:              # the writers' lock provider, with its settings",
        f"    hoodie.write.lock.provider: {args.lock_provider}",
        *(["    hoodie.write.lock.filesystem.expire: '2'"] if args.lock_provider == FILE_LOCK else []),
        "tables:" if tables or args.discover else "tables: []",
    ]
    for table in tables:
        lines += [f"  - base_path: {json.dumps(table.base_path)}", f"    name: {json.dumps(table.name)}"]
    if args.discover:
        lines += [f"  - discover: {json.dumps(args.discover)}", f"    discover_depth: {args.depth}"]
    return "\n".join([*lines, ""])


FILE_LOCK = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"


def _writer_text(args: Namespace, settings: LakeSettings) -> str:
    url = settings.manager_url or conf.get("api", "base_url", fallback="") or "http://AIRFLOW:8080"
    options = {
        "hoodie.write.commit.callback.on": "true",
        "hoodie.write.commit.callback.http.url": f"{url.rstrip('/')}{MOUNT_PATH}/callback",
        "hoodie.write.commit.callback.http.api.key": "<one of [lake] callback_tokens>",
        "hoodie.write.commit.callback.http.timeout.seconds": "5",
        "hoodie.table.services.enabled": "false",
        "hoodie.compact.inline": "false",
        "hoodie.clean.automatic": "false",
        "hoodie.archive.automatic": "false",
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.write.lock.provider": args.lock_provider,
        "hoodie.metadata.auto.delete.partitions": "false",
    }
    if args.lock_provider == FILE_LOCK:
        options["hoodie.write.lock.filesystem.expire"] = "2"
    if args.engine == "flink":
        options |= dict.fromkeys(FLINK_SERVICES, "false")
        body = ",\n".join(f"  '{key}' = '{value}'" for key, value in options.items())
        return f"-- not tried against Flink; options of the connector 'hudi'\nWITH (\n{body}\n)\n"
    return "".join(f"{key}={value}\n" for key, value in options.items())


FLINK_SERVICES = ("compaction.async.enabled", "compaction.schedule.enabled", "clean.async.enabled")
"""Hudi's Flink connector has its own switches of the services that a writer runs."""


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
