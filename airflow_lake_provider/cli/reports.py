"""`airflow lake overview`, `tables`, `backlog`, `runs` and `explain`, and `lake`, the same without Airflow's start.

The manager answers with a report, and the command prints it. `airflow` itself takes about two seconds to start, before
it runs any command; the console script `lake` imports neither Airflow nor a database and takes a tenth of that. Where
no manager answers, the report is built here, from Airflow's database and the table's store.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import shutil
import sys
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from airflow_lake_provider.cli.command import (
    ago,
    columns,
    duration,
    moment,
    print_columns,
    print_document,
    size,
    warn,
    with_times,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from airflow_lake_provider.manager.reports import Reports
    from airflow_lake_provider.manager.scheduling import Net

MOUNT_PATH = "/v1/hoodie"
ANSWER_WITHIN_S = 30.0
NO_MANAGER = "LAKE_NO_MANAGER"
"""Set for `airflow lake`, when `lake` has found that no manager answers."""

# --- Ask the manager


class NoManagerError(Exception):
    """No manager answers, or it refuses the token: the report is built without it."""


def ask(path: str, **query: str) -> dict[str, Any]:
    """Return a report of the manager. Raises NoManagerError, and ends the command with an error of the manager's."""
    url, token = find_address()
    text = f"{url}{MOUNT_PATH}/reports/{path}" + (f"?{urlencode(query)}" if query else "")
    if not text.startswith(("http://", "https://")):
        raise NoManagerError(f"{url} is no address of a manager")
    request = Request(text, headers={"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
            found = json.load(answer)
    except HTTPError as error:
        raise _refusal(error, url) from error
    except (OSError, ValueError, HTTPException) as error:
        raise NoManagerError(f"no manager answers at {url}: {getattr(error, 'reason', error)}") from error
    if not isinstance(found, dict):
        raise NoManagerError(f"what answers at {url} is no manager")
    return found


def _refusal(error: HTTPError, url: str) -> BaseException:
    try:
        body = json.load(error)
        name, detail = str(body["error"]), str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return NoManagerError(
            f"{url} answers {error.code}: the lake plugin is not loaded in this API server, or is older"
        )
    if error.code in {401, 403, 503}:
        return NoManagerError(f"the manager at {url} refuses: {detail}")
    return SystemExit(f"{name}: {detail}")


def find_address() -> tuple[str, str]:
    """Return the manager's URL and a service token, from the environment and airflow.cfg, as tasks find them.

    Raises NoManagerError when there is no token that this process may read.
    """
    if os.environ.get(NO_MANAGER):
        raise NoManagerError("")
    options = _Options()
    token = options.get("lake", "service_tokens").replace("\n", ",").split(",")[0].strip()
    if not token:
        raise NoManagerError("[lake] service_tokens is empty")
    url = options.get("lake", "manager_url")
    if not url:
        api = options.get("core", "execution_api_server_url") or options.get("api", "base_url")
        parts = urlsplit(api)
        url = f"{parts.scheme}://{parts.netloc}" if parts.netloc else "http://localhost:8080"
    return url.rstrip("/"), token


class _Options:
    """Airflow's configuration without Airflow: environment variables over airflow.cfg. It runs no `_cmd`."""

    def __init__(self) -> None:
        home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
        self._file = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            self._file.read(Path(os.environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg").expanduser())
        except (configparser.Error, UnicodeDecodeError) as error:
            raise NoManagerError(f"airflow.cfg cannot be read: {error}") from error

    def get(self, section: str, name: str) -> str:
        given = os.environ.get(f"AIRFLOW__{section.upper()}__{name.upper()}")
        text = given if given is not None else self._file.get(section, name, fallback="")
        return text.strip().replace("%%", "%")


# --- Build the reports here


def open_reports() -> Reports:
    """Return the reports of this process, which reads Airflow's database and the tables' stores."""
    from airflow_lake_provider.hooks.open_tables import open_with_connections
    from airflow_lake_provider.manager.evaluation import AdmissionController
    from airflow_lake_provider.manager.reports import Reports
    from airflow_lake_provider.manager.run_scheduler import RunScheduler
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway
    from airflow_lake_provider.timeline_server.cache import SharedTimelines

    settings, registry, gateway = load_settings(), open_registry(), AirflowRunGateway()
    open_table, tables = open_with_connections(settings.storage_conn_ids), open_tables(settings)

    def find_net() -> Net:
        with registry.transaction() as session:
            return gateway.find_net(session)

    return Reports(
        registry=registry,
        tables=tables,
        views=TableViewCache(SharedTimelines(open_table=open_table)),
        instances=AirflowInstanceGateway(),
        run_scheduler=RunScheduler(registry, gateway, tables.load, settings.engine),
        admit=AdmissionController(open_table).admit,
        find_net=find_net,
    )


def _build_overview(_query: dict[str, str]) -> dict[str, Any]:
    return open_reports().overview()


def _build_tables(query: dict[str, str]) -> dict[str, Any]:
    from airflow_lake_provider.manager.db.search import Sort

    reports, after = open_reports(), tuple(json.loads(query["after"]))
    page = reports.list_tables(Sort(query["sort"]), after, 1000)
    return page | {"problems": [] if after else reports.find_problems()}


def _build_runs(query: dict[str, str]) -> dict[str, Any]:
    from airflow_lake_provider.manager.reports import find_table

    reports = open_reports()
    return reports.list_runs(find_table(reports.registry, query["table"]).base_path)


def _build_explanation(query: dict[str, str]) -> dict[str, Any]:
    from airflow_lake_provider.manager.reports import find_table

    reports = open_reports()
    return reports.explain(find_table(reports.registry, query["table"]).base_path)


def _build_problems(_query: dict[str, str]) -> dict[str, Any]:
    return {"problems": open_reports().find_problems()}


def _build_backlog(_query: dict[str, str]) -> dict[str, Any]:
    return open_reports().backlog()


_BUILDERS: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "overview": _build_overview,
    "tables": _build_tables,
    "backlog": _build_backlog,
    "problems": _build_problems,
    "runs": _build_runs,
    "explanation": _build_explanation,
}


def load_report(path: str, **query: str) -> dict[str, Any]:
    """Return a report: the manager's, or one that is built here, in a process of Airflow's command line."""
    try:
        return ask(path, **query)
    except NoManagerError as error:
        if "airflow" not in sys.modules:
            _start_airflow(str(error))
        return _build(path, query)


def _build(path: str, query: dict[str, str]) -> dict[str, Any]:
    from airflow_lake_provider.errors import LakeError

    try:
        return _BUILDERS[path](query)
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def _start_airflow(why: str) -> NoReturn:
    """Replace this process by `airflow lake ...`, which takes some seconds and can do all."""
    if why:
        warn(f"{why}; Airflow's own command reads its database instead, which takes some seconds")
    own = Path(sys.executable).with_name("airflow")
    program = str(own) if own.exists() else shutil.which("airflow")
    if program is None:
        raise SystemExit(
            "the command airflow is not installed here: set AIRFLOW__LAKE__MANAGER_URL and a service token"
        )
    os.environ[NO_MANAGER] = "1"
    os.execv(program, [program, "lake", *sys.argv[1:]])


# --- `lake`: the console script

FAST = ("overview", "tables", "backlog", "runs", "explain")


def main() -> None:
    """Run a report from the manager's answer; leave every other command to `airflow lake`."""
    if len(sys.argv) < 2 or sys.argv[1] not in FAST:
        _start_airflow("")
    parser = argparse.ArgumentParser(prog="lake", description="Table services of a Hudi lake; more: lake --help")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in FAST:
        command = commands.add_parser(name)
        command.add_argument("-o", "--output", choices=("text", "table", "json", "yaml", "plain"), default="text")
        if name in {"runs", "explain"}:
            command.add_argument("table", help="Base path, or a name, id or database.name of the registry")
        if name == "explain":
            command.add_argument("--dry-run", action="store_true", help="Print only what would be started now")
    args = parser.parse_args()
    found: dict[str, Callable[[Namespace], None]] = {
        "overview": overview,
        "tables": tables,
        "backlog": backlog,
        "runs": runs,
        "explain": explain,
    }
    try:
        found[args.command](args)
    except BrokenPipeError:
        # `lake tables | head`: nothing is wrong, and Python must not complain at its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- The whole lake


def overview(args: Namespace) -> None:
    """Print the lake in numbers: tables by state, backlog, services of the last day; first what stops them all."""
    found = load_report("overview")
    if args.output != "text":
        print_document(args, with_times(found), [_flat(found)])
        return
    _warn_of(found["problems"])
    now_ms, states = found["now_ms"], found["states"]
    shown = ", ".join(f"{count:,} {state}" for state, count in states.items() if count) or "none yet"
    print(f"tables        {found['tables']:,}: {shown}")
    if not found["tables"]:
        print(EMPTY)
        return
    print(
        f"attention     {found['need_attention']:,} need a person" if found["need_attention"] else "attention     none"
    )
    print(f"backlog       {size(found['backlog_bytes'])} in log files that no compaction has merged")
    if found.get("oldest_due_ms") is not None:
        waited_s = (now_ms - found["oldest_due_ms"]) / 1000
        print(f"oldest debt   a service has been due for {duration(waited_s)} and does not run")
    if found["oldest_dirty_ms"] is not None:
        print(f"waiting       the oldest request for an evaluation came {ago(found['oldest_dirty_ms'], now_ms)}")
    if found["holes"]:
        print(f"holes         {found['holes']:,} pending writes or plans with completed writes behind them")
    print("last 24 h     " + ("no service has run" if not found["last_day"] else ""))
    rows = [
        {"": "", "service": one["service"], "state": one["state"], "runs": one["runs"], "time": duration(one["run_s"])}
        for one in found["last_day"]
    ]
    for line in columns(rows, "   ", ""):
        print(line)


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in found.items() if not isinstance(value, (dict, list))}
    return with_times(plain | found["states"])


EMPTY = """\
no table is registered yet. Either
  - point a writer to the manager (`airflow lake init --table PATH` prints how): its next commit registers it, or
  - name tables, or a root to search, in the tables file: `airflow lake init --discover ROOT` prints one"""


def warn_of_all_tables() -> None:
    """Print on the error output what stops or delays all tables, as far as it is known without the manager."""
    try:
        found = ask("problems")
    except NoManagerError as error:
        if str(error):
            warn(f"! {error}; whether its loop makes passes, and which notices it refused, is not known here")
        found = _build("problems", {})
    _warn_of(found["problems"])


def _warn_of(problems: list[str]) -> None:
    for problem in problems:
        warn(f"! {problem}")


def tables(args: Namespace) -> None:
    """Print the registry, one table per line, and on the error output what stops them all."""
    rows = list(_all_tables("name"))
    if not rows and args.output == "text":
        print(EMPTY)
        return
    print_columns(args, [with_times(row) for row in rows], [_table_line(row) for row in rows])


def _all_tables(sort: str) -> Iterator[dict[str, Any]]:
    after = "[]"
    while True:
        page = load_report("tables", sort=sort, after=after)
        _warn_of(page.get("problems", []))
        yield from page["tables"]
        if not page["next"]:
            return
        after = json.dumps(page["next"])


def _table_line(row: dict[str, Any]) -> dict[str, Any]:
    wrong = [*(f"{service} blocked" for service in row["blocked"]), *([row["problem"]] if row["problem"] else [])]
    return {
        "table": f"{row['database']}.{row['table']}" if row["database"] else row["table"],
        "state": row["state"],
        "due": ", ".join(row["due"]) or "-",
        "backlog": size(row["log_bytes"]),
        "evaluated": moment(row["evaluated_ms"]),
        "next": moment(row["next_evaluation_ms"]),
        "path": row["base_path"],
        "problem": "; ".join(wrong),
    }


MOST_BACKLOGS = 50


def backlog(args: Namespace) -> None:
    """Print what is due and waits, in its ranked order, what would run on observed tables, and how the budgets bear it.

    Then the tables with the most bytes in log files that no compaction has merged, at most 50.
    """
    found, page = load_report("backlog"), load_report("tables", sort="backlog", after="[]")
    _warn_of(page.get("problems", []))
    rows = [row for row in page["tables"] if row["log_bytes"]][:MOST_BACKLOGS]
    if args.output != "text":
        shown = {name: [with_times(row) for row in found[name]] for name in ("waiting", "observed", "budgets")}
        document = {"pressure": found["pressure"], **shown, "log_files": [with_times(row) for row in rows]}
        print_document(args, document, [_waiting_line(row, found["now_ms"]) for row in found["waiting"]])
        return
    for name, heading in (("waiting", "due, in the order in which it starts"), ("observed", "due, only observed")):
        _print_table(heading, [_waiting_line(row, found["now_ms"]) for row in found[name]])
        for row in found[name]:
            if row["why"] and name == "waiting":
                print(f"  {row['rank']}. {row['service']} of {row['table']}: {row['why']}")
    _print_table("budgets of 24 hours", [_budget_line(row) for row in found["budgets"]])
    if rows:
        _print_table("log files that no compaction has merged", [_backlog_line(row) for row in rows])
    elif not found["waiting"]:
        print("nothing waits, and no table has log files that wait for a compaction" if page["tables"] else EMPTY)


def _print_table(heading: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        print(f"# {heading}")
        for line in columns(rows, gap="  ", ruler=""):
            print(line)


def _waiting_line(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    price = row["price"]
    seconds, size_bytes = price.get("seconds") or [None] * 3, price.get("bytes") or [None] * 3
    interval = "-" if seconds[0] is None else f"{duration(seconds[1])} - {duration(seconds[2])}"
    return {
        "rank": row["rank"],
        "table": f"{row['database']}.{row['table']}" if row["database"] else row["table"],
        "service": row["service"],
        "class": row["class"],
        "takes": "-" if seconds[0] is None else duration(seconds[0]),
        "between": interval,
        "writes": size(None if size_bytes[0] is None else int(size_bytes[0])),
        "points": price.get("points", "-"),
        "since": ago(row["since_ms"], now_ms),
        "starts": "-" if row["expected_ms"] is None else ago(row["expected_ms"], now_ms),
        "waits for": row["short_of"] or "-",
    }


def _budget_line(row: dict[str, Any]) -> dict[str, Any]:
    def of(have: Any, used: Any) -> str:
        return "-" if have is None else f"{used} of {have}"

    return {
        "budget": row["shown"],
        "slots": "-" if row["slots"] is None else row["slots"],
        "core hours": of(row["core_hours_per_day"], row["spent_core_hours"]),
        "bytes": of(row["bytes_per_day"], row["spent_bytes"]),
        "wait": row["waiting"],
        "core hours that wait": row["waiting_core_hours"],
        "arrived": row["arrived_core_hours"],
        "pressure": row["pressure"],
    }


def _backlog_line(row: dict[str, Any]) -> dict[str, Any]:
    ratio = f"{100 * row['log_bytes'] / row['base_bytes']:.0f} %" if row["base_bytes"] else "-"
    return {
        "table": f"{row['database']}.{row['table']}" if row["database"] else row["table"],
        "log files": size(row["log_bytes"]),
        "of their base files": ratio,
        "state": row["state"],
        "due": ", ".join(row["due"]) or "-",
        "path": row["base_path"],
    }


# --- What would have happened under other budgets


def simulate(args: Namespace) -> None:
    """Replay the recorded decisions under other settings; print cost, backlog and waits next to those of today's."""
    from airflow_lake_provider.config.tables_file import load_tables_file
    from airflow_lake_provider.errors import LakeError
    from airflow_lake_provider.manager.whatif import load_decisions, parse_since_ms, replay, to_svg, with_budgets

    try:
        reports = open_reports()
        tables, now_ms = reports.tables.load(), reports.registry.now_ms()
        other = load_tables_file(args.policy) if args.policy else tables
        other = with_budgets(other, args.budget or [])
        found = load_decisions(reports.registry, now_ms - parse_since_ms(args.since))
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    replays = [("settings in force", replay(found, tables, now_ms)), ("simulated", replay(found, other, now_ms))]
    if args.plot:
        Path(args.plot).write_text(to_svg(replays), encoding="utf-8")
    rows = [{"settings": name, **one.to_dict()} for name, one in replays]
    if args.output != "text":
        print_document(args, rows, rows)
        return
    print(f"{len(found):,} decisions of the last {args.since}")
    for line in columns([_simulated_line(row) for row in rows], gap="  ", ruler=""):
        print(line)


def _simulated_line(row: dict[str, Any]) -> dict[str, Any]:
    waits = {f"wait {name}": duration(row[f"wait_{name}_s"]) for name in ("p50", "p95", "most")}
    counts = {name: row[name] for name in ("settings", "decided", "started", "waiting")}
    return {
        **counts,
        "never start": row["never_start"],
        "core hours": row["core_hours"],
        "written": size(row["bytes"]),
        "points": row["points"],
        **waits,
        "most core hours waiting": row["most_core_hours_waiting"],
    }


# --- One table: `runs`


def runs(args: Namespace) -> None:
    """Print what is requested, scheduled, running or retrying, then the newest ended instances."""
    found = load_report("runs", table=args.table)
    rows = found["instances"]
    if args.output != "text":
        shown = [with_times(row) for row in rows]
        print_document(args, shown, shown)
        return
    for row in rows:
        print(_run_text(row))
    if not rows:
        print(f"no service of {found['base_path']} was ever requested; `airflow lake explain` says what is due and why")


def _run_text(row: dict[str, Any]) -> str:
    late = " LATE" if row["overdue"] else ""
    until = f", until {moment(row['until_ms'])}{late}: {row['owner']}" if row["owner"] else ""
    since = moment(row["since_ms"])
    text = f"{row['state']:<10} {row['service']:<14} since {since}{until}  {row['run_id']}\n  {row['reason']}"
    operation = _operation_text(row.get("operation") or {})
    return f"{text}\n  {operation}" if operation else text


def _operation_text(found: dict[str, Any]) -> str:
    """Return what was expected of a run next to what it cost: `expected 32 s (20 s - 50 s), 1.2 GiB; took 30 s`."""
    price, parts = found.get("price") or {}, []
    if price.get("seconds"):
        value, low, high = price["seconds"]
        of = f"expected {duration(value)} ({duration(low)} - {duration(high)}), {size(int(price['bytes'][0]))} written"
        parts.append(f"{of}, {price['points']:g} points, by {price['basis']}")
    if found.get("outcome"):
        written = f", {size(found['bytes_out'])} written" if found.get("bytes_out") is not None else ""
        parts.append(f"{found['outcome'].replace('_', ' ')}: took {duration(found['job_s'])}{written}")
    return "; ".join(parts)


# --- One table: `explain`

MOST_SHOWN = 80
"""Characters of a setting's value in the text form; JSON and YAML have all of it."""

TABLE_COLUMNS = ("service", "verdict", "now", "run_id", "reason")
"""What a table shows of a service; JSON and YAML have all."""


def explain(args: Namespace) -> None:
    """Print every service with its rules, the actual values, what blocks it, and what would be started now."""
    found = load_report("explanation", table=args.table)
    if args.dry_run:
        _print_dry_run(args, found["services"])
        return
    if args.output == "text":
        _print_explanation(found)
        return
    document = with_times(found) | {"instances": [with_times(row) for row in found["instances"]]}
    print_document(args, document, [{key: row[key] for key in TABLE_COLUMNS} for row in found["services"]])


def _print_dry_run(args: Namespace, services: list[dict[str, Any]]) -> None:
    wanted = [row for row in services if row["now"] == "start"]
    if args.output != "text":
        print_document(args, wanted, [{key: row[key] for key in TABLE_COLUMNS} for row in wanted])
        return
    for row in wanted:
        plans = f" of {', '.join(row['plans'])}" if row["plans"] else ""
        print(f"would start {row['run_id']}: {row['mode']}{plans}: {row['run_reason']}")
    if not wanted:
        print("nothing would be started now")


def _print_explanation(found: dict[str, Any]) -> None:
    for problem in found["net_problems"]:
        print(f"in the way of all tables: {problem}")
    evaluation = moment(found["next_evaluation_ms"]) if found["registered"] else "never: not in the registry"
    print(f"{found['table']} at {found['base_path']}: {found['type']}, version {found['version']}")
    print(f"{found['timeline']}; next evaluation {evaluation}")
    for line in found["holes"]:
        print(line)
    problems = {
        "damaged or unknown files": found["damaged"],
        "the last evaluation failed": found["evaluation_problem"] if not found["damaged"] else "",
        "in the way of every service": found["lock_problem"],
        "writers do not conform (airflow lake check-writer)": _describe_writers(found["writers"]),
        "the tables' settings are wrong, these are the last good ones": found["settings_problem"],
    }
    for what, problem in problems.items():
        if problem:
            print(f"{what}: {problem}")
    lock_problem = found["lock_problem"]
    _print_services(found["services"], lock_problem)
    for row in found["instances"]:
        late, until = " (LATE)" if row["overdue"] else "", moment(row["until_ms"])
        print(f"{row['service']:<14} {row['state']}{_of(row['run_id'])}, {row['owner']} until {until}{late}:")
        print(f"{'':<14} {row['reason']}")
    for one in found["settings"]:
        print(f"{'set':<14} {one['name']} = {_short(one['value'])}  ({one['place']})")


def _print_services(services: list[dict[str, Any]], lock_problem: str) -> None:
    for row in services:
        print(f"{row['service']:<14} {row['verdict'].replace('_', ' '):<8} {_brief(row['reason'], lock_problem)}")
        if row["now"]:
            why = f": {row['run_reason']}" if row["run_reason"] != row["reason"] else ""
            print(f"{'':<14} now      {row['now'].replace('_', ' ')}{_of(row['run_id'])}{why}")
        for label in ("rules", "found"):
            values = ", ".join(f"{key} {_brief(_shown(key, value), lock_problem)}" for key, value in row[label].items())
            if values:
                print(f"{'':<14} {label:<8} {values}")


def _short(value: str) -> str:
    return value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}..."


def _describe_writers(rows: list[dict[str, Any]]) -> str:
    broken = [row for row in rows if row["state"] == "broken"]
    return "; ".join(", set ".join((f"{row['requirement']}: {row['evidence']}", *row["settings"])) for row in broken)


def _of(run_id: str) -> str:
    return f" {run_id}" if run_id else ""


def _brief(text: str, lock_problem: str) -> str:
    """Return a text without the problem that the head prints once for all services."""
    return text.replace(lock_problem, "a lock provider is missing (see above)") if lock_problem else text


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, (int, float)) and name.endswith("_bytes"):
        return size(int(value))
    if isinstance(value, (int, float)) and name.endswith("_s"):
        return duration(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "off" if value is None else str(value)


if __name__ == "__main__":
    main()
