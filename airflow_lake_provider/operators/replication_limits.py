"""What of a replication run can be refused before Spark is started for it."""

from __future__ import annotations

import logging

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.timeline import table_opener
from airflow_lake_provider.replication.change import Mode
from airflow_lake_provider.replication.mode_limits import require_mode_fits
from airflow_lake_provider.timeline.properties import load_table_properties

log = logging.getLogger(__name__)


def require_mode_fits_table(mode: Mode, base_path: str, sink: str) -> None:
    """Raise SourceRefusedError when the table's type does not allow the mode.

    A table that this worker cannot read is left to the driver, which checks the same.
    """
    if mode is not Mode.LATEST:
        return
    try:
        table_type = load_table_properties(table_opener(None)(base_path)).table_type
    except (LakeError, OSError) as error:
        log.warning("the type of table %s is left to the driver of sink %s to check: %s", base_path, sink, error)
        return
    require_mode_fits(mode, table_type, base_path, sink)
