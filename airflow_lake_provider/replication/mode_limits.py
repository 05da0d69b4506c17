"""Which modes a table's type allows; pure."""

from __future__ import annotations

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.replication.change import Mode

MERGE_ON_READ = "MERGE_ON_READ"


def require_mode_fits(mode: Mode, table_type: str, base_path: str, sink: str) -> None:
    """Raise SourceRefusedError for mode `latest` on a merge-on-read table; `sink` names the sink or its stream.

    Hudi 1.2's incremental query of such a table reads a commit's own log files without the rest of their file slice. It
    returns none of the commit's rows where a compaction was planned before the commit completed; it returns rows that
    lost to one with a higher ordering value; and the blocks of a partial update lack all other columns (Hudi's issue
    18943 and pull request 19005).
    """
    if mode is Mode.LATEST and table_type == MERGE_ON_READ:
        raise SourceRefusedError(
            f"sink {sink} of table {base_path} has mode: latest, and the table is {MERGE_ON_READ}: Hudi 1.2 then loses "
            "rows beside pending compactions, and returns rows that are out of date or partial. Set mode: changes and "
            "another name for the sink; the table needs hoodie.table.cdc.enabled=true since it was made. Or take the "
            "sink out of the tables file: while it is there it holds the table's files until its time to live ends"
        )
