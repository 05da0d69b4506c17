"""Find the files of a timeline that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.timeline import TimelineProblem

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline


def find_damaged_files(
    storage: Storage, properties: TableProperties, timeline: Timeline, *, is_gone_damage: bool = True
) -> list[TimelineProblem]:
    """Read the file of every instant in its highest state; return those that cannot be decoded.

    `is_gone_damage` says whether a file that is not there any more counts as well.
    """
    problems = []
    for instant in timeline.instants:
        try:
            content = storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}")
            if decode(content, instant.file_name) is None and not instant.may_be_empty:
                problems.append(TimelineProblem(instant.file_name, "empty, which this action and state must not be"))
        except FileNotFoundError:
            if is_gone_damage:
                problems.append(TimelineProblem(instant.file_name, "vanished while the timeline was read"))
        except LakeError as error:
            problems.append(TimelineProblem.of(instant.file_name, error))
    return problems
