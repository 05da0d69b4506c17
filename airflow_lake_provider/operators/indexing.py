"""Build indexes of one table: the table service operator with a wish for indexes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.indexing.index_spec import (
    CHECK,
    CHECK_TIMEOUT,
    DROP_FIRST,
    NO_WRITER,
    WAIT_S,
    CheckLevel,
    parse_indexes,
    wish_options,
)
from airflow_lake_provider.job_contract import LOCK_PROVIDER, Mode, Service
from airflow_lake_provider.operators.service_arguments import is_true, parse_settings
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        **kwargs: Any,
    ) -> None:
        super().__init__(service=Service.INDEXING.value, mode=mode, **kwargs)
        self.indexes = indexes
        self.check = check
        self.wait_s = wait_s
        self.check_timeout_s = check_timeout_s
        self.drop_first = drop_first
        self.no_writer = no_writer

    def execute(self, context: Context) -> dict[str, Any]:
        """Build the indexes; see HudiTableServiceOperator."""
        try:
            options = parse_settings(self.hudi_options, "hudi_options") | self.build_options()
            if is_true(self.no_writer):
                options = LOCK_FOR_ALONE | options
            self.hudi_options = options
        except (LakeError, ValueError) as error:
            raise AirflowFailException(str(error)) from error
        return super().execute(context)

    def build_options(self) -> dict[str, str]:
        """Return what the job is told beyond Hudi's settings. Raises ConfigError, ValueError."""
        return {
            **wish_options(parse_indexes(_names(self.indexes))),
            CHECK: CheckLevel(self.check).value,
            WAIT_S: f"{float(self.wait_s):g}",
            CHECK_TIMEOUT: str(int(self.check_timeout_s)),
            DROP_FIRST: str(is_true(self.drop_first)).lower(),
            NO_WRITER: str(is_true(self.no_writer)).lower(),
        }


def _names(indexes: Sequence[str] | str) -> list[str]:
    if not isinstance(indexes, str):
        return list(indexes)
    if indexes.lstrip().startswith("["):
        return [str(name) for name in json.loads(indexes)]
    return [name for name in indexes.split(";") if name.strip()]
