"""What a topic must have of a table's newest commits: each row that they changed once, as time travel shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demo.changes import Version, compare
from local_stack.kafka_consumer import Record


def require_as_in_the_table(records: Sequence[Record], commits: Sequence[str], versions: Mapping[str, Version]) -> None:
    """Compare the records of all commits but the first with what each of them changed, and their order per key.

    `commits` are in the order of completion, none left out; `versions` has the table's rows after each of them.
    """
    later = commits[1:]
    found = [record for record in records if record.headers["commit"] in later]
    arrivals = {arrival.commit: arrival for arrival in compare(found, commits, versions)}
    assert set(arrivals) == set(later), "commits without records"
    wrong = [arrival for arrival in arrivals.values() if not arrival.is_exact or arrival.kind != "changes"]
    assert not wrong, f"not as in the table: {wrong}"
    last: dict[Any, int] = {}
    for record in found:
        key, number = (record.partition, record.key["id"]), later.index(record.headers["commit"])
        assert last.get(key, 0) <= number, f"row {record.key} went back to commit {record.headers['commit']}"
        last[key] = number
