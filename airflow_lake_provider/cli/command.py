"""What the commands share: a report of the manager, rows in each format of `--output`, numbers and times for people.

The manager answers with a report, and a command prints it. `airflow` itself takes about two seconds to start, before
it runs any command; the console script `lake` starts with this module, which imports neither Airflow nor a database,
in a tenth of that. Where no manager answers, the report is built here, from Airflow's database and the table's store.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar, cast
from urllib.parse import urlencode
from urllib.request import Request

from airflow_lake_provider.config.airflow_options import find_manager
from airflow_lake_provider.config.manager_trust import explain, ssl_context
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.manager.read_model import (
    BacklogReport,
    BillReport,
    ExplanationReport,
    HistoryReport,
    OverviewReport,
    ProblemsReport,
    RunsReport,
    TablesReport,
)
from airflow_lake_provider.shared.http_answer import ServerAnswer
from airflow_lake_provider.shared.http_answer import ask as ask_by_http
from airflow_lake_provider.shared.plain_text import plain
from airflow_lake_provider.shared.typed_json import read_known

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance

    from airflow_lake_provider.config.manager_trust import ManagerTrust
    from airflow_lake_provider.manager.reports.reports import Reports
    from airflow_lake_provider.manager.runs.airflow_runs import LakeDags

_R = TypeVar("_R")
"""A report of the read model."""
_Row = TypeVar("_Row", bound="DataclassInstance")

# Airflow's API imports a test client, whose warning Airflow's log prints on the output, where programs read rows.
warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")


def run_command(args: Namespace, command: Callable[[Namespace], None]) -> None:
    """Run a command; an error of the provider ends it with its sentence."""
    with plain_output():
        try:
            command(args)
        except LakeError as error:
            raise _ended(args, type(error).__name__, str(error)) from error
        except ManagerRefusedError as error:
            raise _ended(args, error.name, error.detail) from error


class ManagerRefusedError(Exception):
    """The manager answered with an error of the provider."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(detail)
        self.name = name
        self.detail = detail


def _ended(args: Namespace, name: str, detail: str) -> SystemExit:
    """Return the end of a command: a sentence, or for programs an object with the error's name, on the error output."""
    output = getattr(args, "output", "text")
    if output == "json":
        return SystemExit(json.dumps({"error": name, "detail": detail}, indent=2))
    if output == "yaml":
        import yaml

        return SystemExit(yaml.safe_dump({"error": name, "detail": detail}, sort_keys=False).rstrip())
    return SystemExit(f"{detail[:1].upper()}{detail[1:]}")


@contextmanager
def plain_output() -> Iterator[None]:
    """Print no character that a terminal obeys: a table's writer may have put one into a name."""
    with redirect_stdout(PlainOutput(sys.stdout)), redirect_stderr(PlainOutput(sys.stderr)):
        try:
            yield
        except SystemExit as end:
            # The interpreter prints it, when the output is the terminal's again.
            if isinstance(end.code, str):
                end.code = plain(end.code)
            raise


def print_plainly(command: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Return the command with plain output, and with errors as `run_command` prints them."""

    @wraps(command)
    def run(args: Namespace) -> None:
        run_command(args, command)

    return run


class PlainOutput:
    """An output that prints plain text only; all else of it is the output's own."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def write(self, text: str) -> int:
        """Write the plain text; return the length of what was given."""
        self._output.write(plain(text))
        return len(text)

    def flush(self) -> None:
        """Flush the output."""
        self._output.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def warn(text: str) -> None:
    """Print a line on the error output: programs read the output itself."""
    print(text, file=sys.stderr)


# --- Ask the manager

MOUNT_PATH = "/v1/hoodie"
ANSWER_WITHIN_S = 30.0
NO_MANAGER = "LAKE_NO_MANAGER"
"""Set for `airflow lake`, when `lake` has found that no manager answers."""


class NoManagerError(Exception):
    """No manager answers, or it refuses the token: the report is built without it."""


def ask(kind: type[_R], **query: str) -> _R:
    """Return a report of the manager. Raises NoManagerError and ManagerRefusedError.

    A manager of another release may lack a field that this command needs: then the report is built here as well.
    """
    url, token, trust = find_address()
    text = f"{url}{MOUNT_PATH}/reports/{_SOURCES[kind].path}" + (f"?{urlencode(query)}" if query else "")
    if not text.startswith(("http://", "https://")):
        raise NoManagerError(f"{url} is no address of a manager")
    request = Request(text, headers={"Authorization": f"Bearer {token}"})
    try:
        answer = ask_by_http(request, ANSWER_WITHIN_S, ssl_context(url, trust))
        if not answer.is_success:
            raise _refusal(answer, url)
        body = json.loads(answer.content)
    except (OSError, ValueError, RecursionError) as error:
        raise NoManagerError(f"no manager answers at {url}: {explain(error)}") from error
    try:
        return read_known(kind, body)
    except ValueError as error:
        raise NoManagerError(f"what answers at {url} is no manager of this release: {error}") from error


def _refusal(answer: ServerAnswer, url: str) -> Exception:
    try:
        body = json.loads(answer.content)
        name = str(body["error"])
        detail = str(body["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return NoManagerError(
            f"{url} answers {answer.status}: the lake plugin is not loaded in this API server, or is older"
        )
    if answer.status in {401, 403, 503}:
        return NoManagerError(f"the manager at {url} refuses: {detail}")
    return ManagerRefusedError(name, detail)


def find_address() -> tuple[str, str, ManagerTrust]:
    """Return the manager's URL, a service token, and which server to trust: from the environment and airflow.cfg.

    It reads no connection. Raises NoManagerError when there is no token that this process may read.
    """
    if os.environ.get(NO_MANAGER):
        raise NoManagerError("")
    try:
        return find_manager()
    except ConfigError as error:
        raise NoManagerError(str(error)) from error


# --- Build the reports here


def open_reports() -> Reports:
    """Return the reports of this process, which reads Airflow's database and the tables' stores."""
    from airflow_lake_provider.hooks.open_tables import open_with_connections
    from airflow_lake_provider.manager.loop.evaluation import AdmissionController
    from airflow_lake_provider.manager.reports.reports import Reports
    from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway
    from airflow_lake_provider.timeline_server.cache import SharedTimelines

    settings = load_settings()
    registry = open_registry()
    gateway = AirflowRunGateway()
    open_table = open_with_connections(settings.storage_conn_ids)
    tables = open_tables(settings)

    def find_lake_dags() -> LakeDags:
        with registry.transaction() as session:
            return gateway.find_lake_dags(session)

    return Reports(
        registry=registry,
        tables=tables,
        views=TableViewCache(SharedTimelines(open_table=open_table)),
        instances=AirflowInstanceGateway(),
        run_scheduler=RunScheduler(registry, gateway, tables.load, settings.engine),
        admit=AdmissionController(open_table).admit,
        find_lake_dags=find_lake_dags,
    )


def _build_overview(_query: dict[str, str]) -> OverviewReport:
    return open_reports().overview()


def _build_tables(query: dict[str, str]) -> TablesReport:
    from airflow_lake_provider.manager.reports.reports import parse_table_query

    reports = open_reports()
    after = tuple(json.loads(query["after"]))
    page = reports.list_tables(parse_table_query(query, after, 1000))
    return page if after else replace(page, problems=tuple(reports.find_problems()))


def _build_runs(query: dict[str, str]) -> RunsReport:
    from airflow_lake_provider.manager.reports.reports import find_table

    reports = open_reports()
    return reports.list_runs(find_table(reports.registry, query["table"]).base_path)


def _build_history(query: dict[str, str]) -> HistoryReport:
    from airflow_lake_provider.manager.reports.reports import find_table

    reports = open_reports()
    at_ms = query.get("at_ms")
    return reports.history(find_table(reports.registry, query["table"]).base_path, int(at_ms) if at_ms else None)


def _build_explanation(query: dict[str, str]) -> ExplanationReport:
    from airflow_lake_provider.manager.reports.reports import find_table

    reports = open_reports()
    return reports.explain(find_table(reports.registry, query["table"]).base_path)


def _build_problems(_query: dict[str, str]) -> ProblemsReport:
    return ProblemsReport(tuple(open_reports().find_problems()))


def _build_backlog(_query: dict[str, str]) -> BacklogReport:
    return open_reports().backlog()


def _build_bill(query: dict[str, str]) -> BillReport:
    from airflow_lake_provider.manager.db.bill import BillBy

    return open_reports().bill(BillBy(query["by"]), int(query["days"]))


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a report comes from."""

    path: str
    """The manager's route."""
    build: Callable[[dict[str, str]], object]
    """Without the manager."""


_SOURCES: Mapping[type, _Source] = {
    OverviewReport: _Source("overview", _build_overview),
    TablesReport: _Source("tables", _build_tables),
    BacklogReport: _Source("backlog", _build_backlog),
    BillReport: _Source("bill", _build_bill),
    ProblemsReport: _Source("problems", _build_problems),
    RunsReport: _Source("runs", _build_runs),
    ExplanationReport: _Source("explanation", _build_explanation),
    HistoryReport: _Source("history", _build_history),
}


def load_report(kind: type[_R], **query: str) -> _R:
    """Return a report: the manager's, or one that is built here, in a process of Airflow's command line."""
    try:
        return ask(kind, **query)
    except NoManagerError as error:
        if "airflow" not in sys.modules:
            start_airflow(str(error))
        return build_report(kind, query)


def build_report(kind: type[_R], query: dict[str, str]) -> _R:
    """Return a report without the manager."""
    return cast("_R", _SOURCES[kind].build(query))


def start_airflow(why: str) -> NoReturn:
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


# --- Rows


def print_rows(
    args: Namespace,
    rows: Sequence[_Row],
    to_text: Callable[[_Row], str],
    to_document: Callable[[Any], dict[str, Any]] = asdict,
) -> None:
    """Print rows, which are dataclasses, in the format of `--output`; `to_text` prints one row for people."""
    if args.output != "text":
        documents = [to_document(row) for row in rows]
        print_document(args, documents, documents)
        return
    for row in rows:
        print(to_text(row))


def print_columns(args: Namespace, rows: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]]) -> None:
    """Print rows in the format of `--output`; people get the shorter `shown`, in columns with a heading."""
    if args.output != "text":
        print_document(args, rows, rows)
        return
    for line in columns(shown, gap="  ", ruler=""):
        print(line)


def print_document(args: Namespace, document: object, rows: Sequence[dict[str, Any]]) -> None:
    """Print a document as JSON or YAML, or its rows in columns (`table`, `plain`)."""
    if args.output == "json":
        print(json.dumps(document, indent=2, default=str))
    elif args.output == "yaml":
        import yaml

        print(yaml.safe_dump(json.loads(json.dumps(document, default=str)), sort_keys=False, allow_unicode=True))
    else:
        # As Airflow's own commands print these formats.
        gap, ruler = (" | ", "=+=") if args.output == "table" else ("  ", "")
        for line in columns(rows, gap, ruler):
            print(line)


def columns(rows: Sequence[Mapping[str, Any]], gap: str, ruler: str) -> list[str]:
    """Return rows as lines of aligned columns, with the names first; numbers stand at the right."""
    if not rows:
        return []
    names = list(rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[number]) for line in cells)) for number, name in enumerate(names)]
    is_number = [all(isinstance(row.get(name), (int, float)) for row in rows) for name in names]
    lines = [gap.join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()]
    if ruler:
        lines.append(ruler.join("=" * width for width in widths))
    for line in cells:
        aligned = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        )
        lines.append(gap.join(aligned).rstrip())
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    # One row is one line, whatever a writer put into a name.
    return "" if value is None else plain(" ".join(str(value).split("\n")))


# --- Numbers and times


def moment(time_ms: int | None) -> str:
    """Return a time in the zone of the person at the terminal, with the zone; `-` for none."""
    return "-" if time_ms is None else _local(time_ms).strftime("%Y-%m-%d %H:%M:%S %Z")


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its times in ISO 8601 with their zone: `until_ms` becomes `until`."""
    return {
        key.removesuffix("_ms"): _iso(value) if key.endswith("_ms") else value for key, value in row.items()
    }  # fmt: skip


def _iso(time_ms: int | None) -> str | None:
    return None if time_ms is None else _local(time_ms).isoformat(timespec="seconds")


def _local(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000).astimezone()


def ago(time_ms: int | None, now_ms: int) -> str:
    """Return how far a time is from now, in one unit, as on the pages: `12 s ago`, `in 3 h`; `-` for none."""
    if time_ms is None:
        return "-"
    rest_s = (now_ms - time_ms) / 1000
    if abs(rest_s) < 2:
        return "now"
    span = next((f"{int(abs(rest_s) // of)} {unit}" for unit, of in _UNITS if abs(rest_s) >= 2 * of or of == 1), "")
    return f"in {span}" if rest_s < 0 else f"{span} ago"


_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, as on the pages: `23 h 54 min`, `1 min 5 s`, `12 s`, `0.4 s`."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    rest = round(seconds)
    parts = []
    for unit, length_s in _UNITS:
        count, rest = divmod(rest, length_s)
        parts.append((count, unit))
    first = next((number for number, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


def size(count: int | None) -> str:
    """Return bytes with at most three digits, as on the pages: `1.7 MiB`, `120 MiB`; `-` for unknown."""
    if count is None:
        return "-"
    amount = float(count)
    units = iter(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = next(units)
    while amount >= 1000 and unit != "PiB":
        amount, unit = amount / 1024, next(units)
    digits = 1 if amount < 9.95 and unit != "B" else 0
    return f"{f'{amount:.{digits}f}'.removesuffix('.0')} {unit}"
