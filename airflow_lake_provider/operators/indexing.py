"""Build indexes of one table: the table service operator with a wish for indexes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.config.policies import MaintenanceWindow
from airflow_lake_provider.config.tables_file import parse_window
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.arguments import is_true
from airflow_lake_provider.indexing.index_spec import (
    CHECK,
    CHECK_TIMEOUT,
    DROP_FIRST,
    NO_WRITER,
    WAIT_S,
    CheckLevel,
    parse_indexes,
    split_indexes,
    wish_options,
)
from airflow_lake_provider.job_contract import LOCK_PROVIDER, Mode, Service
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


LOCK_FOR_ALONE = {
    LOCK_PROVIDER: "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
}
"""Hudi builds no index without a lock provider, even where nobody else is."""


class HudiIndexOperator(HudiTableServiceOperator):
    """Schedules and builds indexes of a table's metadata table beside its writers (RFC-45), with real Hudi.

    Running it twice is harmless: a complete index is left alone, a pending plan is executed, what a dead builder left
    is finished or cleaned up. The other arguments are those of HudiTableServiceOperator.

    :param indexes: what the table shall have, for example `["record_index", "secondary_index:city"]`; a text is
        separated by semicolons (templated). Pending plans are executed whether they are named or not.
    :param mode: `schedule` only writes the plans; somebody else builds them (templated).
    :param check: `cheap` verifies by timeline and metadata table, `full` also by the data files' contents (templated).
    :param wait_s: seconds to wait for a moment without writers that would be missing in the index (templated).
    :param check_timeout_s: seconds that a finished build waits for writers that may not know of it (templated).
    :param drop_first: drop the indexes before they are built anew (templated).
    :param window: days and hours in which a try may begin, as `maintenance_window` in the tables file; a mapping, or
        its text (templated). Outside it the task is deferred until it opens: it needs a triggerer and holds no slot.
    :param no_writer: say that no writer runs; then the build refuses while it sees one (templated).
    """

    template_fields: Sequence[str] = (
        *HudiTableServiceOperator.template_fields,
        "indexes",
        "check",
        "wait_s",
        "check_timeout_s",
        "drop_first",
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
        self.no_writer = no_writer
        self.window = window

    def execute(self, context: Context) -> dict[str, Any]:
        """Build the indexes, or wait for the window; see HudiTableServiceOperator."""
        try:
            opens = self._find_opening()
            self.build_options()
        except (LakeError, ValueError) as error:
            raise AirflowFailException(str(error)) from error
        if opens is not None and not is_true(self.is_dry_run):
            self.defer(trigger=DateTimeTrigger(moment=opens), method_name="execute_in_window")
        return super().execute(context)

    def execute_in_window(self, context: Context, event: datetime | None = None) -> dict[str, Any]:
        """Resume when the window opened; where it is closed again meanwhile, wait for the next one."""
        return self.execute(context)

    def options_below(self) -> Mapping[str, str]:
        """Return a lock where no writer is to share one."""
        return LOCK_FOR_ALONE if is_true(self.no_writer) else {}

    def options_above(self) -> Mapping[str, str]:
        """Return the wish for indexes."""
        return self.build_options()

    def build_options(self) -> dict[str, str]:
        """Return what the job is told beyond Hudi's settings. Raises ConfigError, ValueError."""
        return {
            **wish_options(parse_indexes(split_indexes(self.indexes))),
            CHECK: CheckLevel(self.check).value,
            WAIT_S: f"{float(self.wait_s):g}",
            CHECK_TIMEOUT: str(int(self.check_timeout_s)),
            DROP_FIRST: str(is_true(self.drop_first)).lower(),
            NO_WRITER: str(is_true(self.no_writer)).lower(),
        }

    def _find_opening(self) -> datetime | None:
        """Return when the window opens, None while it is open or when there is none. Raises ConfigError."""
        text = self.window if isinstance(self.window, str) else json.dumps(self.window)
        window = parse_window(text, "window")
        if window == MaintenanceWindow():
            return None
        opens = window.find_wait_end(datetime.now(UTC))
        said = "is open" if opens is None else f"is closed: the build begins at {opens:%Y-%m-%d %H:%M} UTC"
        self.log.info("table %s: the window (%s) %s", self.base_path, window, said)
        return opens
