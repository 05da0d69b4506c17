"""Build indexes of one table: the table service operator with requested indexes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger

from airflow_lake_provider.config.service_policies import MaintenanceWindow
from airflow_lake_provider.config.tables_file import parse_window
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.execution.arguments import is_true
from airflow_lake_provider.hooks.lake import as_airflow_error
from airflow_lake_provider.indexing.index_spec import CheckLevel, parse_indexes, requested_options, split_indexes
from airflow_lake_provider.job_contract import (
    INDEX_CHECK,
    INDEX_DROP,
    INDEX_DROP_FIRST,
    INDEX_NO_WRITER,
    INDEX_WAIT_S,
    Mode,
    Service,
)
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from airflow_lake_provider.shared.hudi_settings import INDEX_CHECK_TIMEOUT, LOCK_PROVIDER, WRITE_LOCK_FILESYSTEM_EXPIRE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


LOCK_FOR_ALONE = {
    LOCK_PROVIDER: "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    WRITE_LOCK_FILESYSTEM_EXPIRE: "2",
}
"""Hudi builds no index without a lock provider, even without other writers."""


class HudiIndexOperator(HudiTableServiceOperator):
    """Schedules and builds indexes of a table's metadata table concurrently with its writers (RFC-45), with real Hudi.

    Running it twice is harmless: it leaves a complete index alone, executes a pending plan, and finishes or cleans up
    what a dead builder left. The other arguments are those of HudiTableServiceOperator.

    :param indexes: what the table must have, for example `["record_index", "secondary_index:city"]`; a text is
        separated by semicolons (templated). Pending plans are executed whether they are named or not.
    :param mode: `schedule` only writes the plans; another run builds them (templated).
    :param check: `cheap` verifies by timeline and metadata table, `full` also by the data files' contents (templated).
    :param wait_s: seconds to wait for a moment without writers that would be missing in the index (templated).
    :param check_timeout_s: seconds that a finished build waits for writers that may not have loaded it (templated).
    :param drop_first: drop the indexes before they are rebuilt (templated).
    :param drop: drop the indexes, with their pending plans, and build nothing (templated).
    :param window: days and hours in which a try may begin, as `maintenance_window` in the tables file; a mapping, or
        its text (templated). Outside it the task is deferred until it opens: it needs a triggerer and uses no slot.
    :param no_writer: declares that no writer runs; then the build refuses while it sees one (templated).
    """

    template_fields: Sequence[str] = (
        *HudiTableServiceOperator.template_fields,
        "indexes",
        "check",
        "wait_s",
        "check_timeout_s",
        "drop_first",
        "drop",
        "no_writer",
        "window",
    )

    def __init__(
        self,
        *,
        indexes: Sequence[str] | str = (),
        mode: str = Mode.SCHEDULE_AND_EXECUTE.value,
        check: str = CheckLevel.CHEAP.value,
        wait_s: float | str = 300.0,
        check_timeout_s: int | str = 900,
        drop_first: bool | str = False,
        drop: bool | str = False,
        no_writer: bool | str = False,
        window: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(service=Service.INDEXING.value, mode=mode, **kwargs)
        self.indexes = indexes
        self.check = check
        self.wait_s = wait_s
        self.check_timeout_s = check_timeout_s
        self.drop_first = drop_first
        self.drop = drop
        self.no_writer = no_writer
        self.window = window

    def execute(self, context: Context) -> dict[str, Any]:
        """Build the indexes, or wait for the window; returns what HudiTableServiceOperator returns."""
        try:
            opens = self._find_opening()
            self.build_options()
        except (LakeError, ValueError) as error:
            raise as_airflow_error(error) from error
        if opens is not None and not is_true(self.is_dry_run):
            self.defer(trigger=DateTimeTrigger(moment=opens), method_name="execute_in_window")
        return super().execute(context)

    def execute_in_window(self, context: Context, event: datetime | None = None) -> dict[str, Any]:
        """Resume when the window opens; if it is closed again, wait for the next one."""
        return self.execute(context)

    def options_below(self) -> Mapping[str, str]:
        """Return an in-process lock provider where no writer needs a shared one."""
        return LOCK_FOR_ALONE if is_true(self.no_writer) else {}

    def options_above(self) -> Mapping[str, str]:
        """Return the requested indexes."""
        return self.build_options()

    def build_options(self) -> dict[str, str]:
        """Return the job's options besides Hudi's settings. Raises ConfigError, ValueError."""
        specs = parse_indexes(split_indexes(self.indexes))
        if is_true(self.drop) and (is_true(self.drop_first) or not specs):
            raise ConfigError(
                f"table {self.base_path}: drop takes indexes away: name them in indexes, and leave out drop_first"
            )
        return {
            **requested_options(specs),
            INDEX_CHECK: CheckLevel(self.check).value,
            INDEX_WAIT_S: f"{float(self.wait_s):g}",
            INDEX_CHECK_TIMEOUT: str(int(self.check_timeout_s)),
            INDEX_DROP: str(is_true(self.drop)).lower(),
            INDEX_DROP_FIRST: str(is_true(self.drop_first)).lower(),
            INDEX_NO_WRITER: str(is_true(self.no_writer)).lower(),
        }

    def _find_opening(self) -> datetime | None:
        """Return when the window opens, None while it is open or when there is none. Raises ConfigError."""
        text = self.window if isinstance(self.window, str) else json.dumps(self.window)
        window = parse_window(text, "window")
        if window == MaintenanceWindow():
            return None
        opens = window.find_wait_end(datetime.now(UTC))
        state = "is open" if opens is None else f"is closed: the build begins at {opens:%Y-%m-%d %H:%M} UTC"
        self.log.info("table %s: the window (%s) %s", self.base_path, window, state)
        return opens


class HudiMappedIndexOperator(HudiIndexOperator):
    """Indexes of one table of those that a task before it found; its arguments are data, and are not rendered.

    Airflow renders what `expand_kwargs` takes from an XCom like an argument in a DAG file. So a template in the path or
    name of a table could read every connection and Variable.
    """

    template_fields: Sequence[str] = ()
