"""When a table is registered in its catalog: first, and after changed columns or partitions; never otherwise."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import SyncPolicy
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, digest_columns
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.catalog_sync import MAX_PARTITIONS
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import (
    NO_LAST_RUNS,
    LastRuns,
    RunEnd,
    last_runs_to_text,
    parse_last_runs,
)
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.shared.actions import Action, State
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, view

METASTORE = "thrift://hive:9083"
POLICY = TablePolicy(sync=SyncPolicy(enabled=True, metastore=METASTORE, database="shop"))

Write = tuple[Instant, CommitMetadata]


def write(second: int, *partitions: str, columns: str = "c1", gone: tuple[str, ...] = ()) -> Write:
    action = Action.REPLACECOMMIT if gone else Action.COMMIT
    made = commit(*(base(f"f{second}", 1, name) for name in partitions), replaced=tuple((name, "f") for name in gone))
    return completed(second, action), replace(made, columns=columns)


class Catalog:
    """The manager's loop around one table: it evaluates, remembers, and runs what is due."""

    def __init__(self, policy: TablePolicy = POLICY) -> None:
        self.policy = policy
        self.last_runs = NO_LAST_RUNS

    def evaluate(self, *writes: Write, plans: tuple[Instant, ...] = ()) -> Decision:
        facts = TableFacts(view(*writes, plans=plans))
        text = last_runs_to_text(remember_shown(facts, self.policy, self.last_runs, NOW_MS))
        self.last_runs = parse_last_runs(text)
        decided = decide(facts, self.policy, NOW_MS, self.last_runs)
        return next(found for found in decided if found.service is Service.SYNC)

    def run(self, due: Decision, end: RunEnd = RunEnd.SUCCESS) -> None:
        assert due.verdict is Verdict.DUE, due.reason
        self.last_runs = self.last_runs.started(due, due.key_instant).ended(due.key_instant, end, NOW_MS)

    def synced(self, *writes: Write) -> Catalog:
        self.run(self.evaluate(*writes))
        assert self.evaluate(*writes).verdict is Verdict.NOT_DUE
        return self


FIRST = (write(1, "a"), write(2, "a", "b"))


def test_it_is_off_unless_asked_for_and_needs_no_lock_and_no_period() -> None:
    assert Catalog(TablePolicy()).evaluate(*FIRST).verdict is Verdict.NOT_DUE
    due = Catalog().evaluate(*FIRST)
    assert (due.verdict, due.mode, due.plan_instants) == (Verdict.DUE, Mode.EXECUTE, ())
    assert METASTORE in due.reason
    assert due.evidence["registered_as"] == "shop.orders, shop.orders_ro, shop.orders_rt"
    assert due.options == {"lake.sync.metastore": METASTORE, "lake.sync.database": "shop"}
    assert Catalog().evaluate().verdict is Verdict.NOT_DUE, "a table without a write has no columns"


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        pytest.param(write(3, "a", "b"), "", id="same-partitions"),
        pytest.param(write(3, "a", gone=("a",)), "", id="overwritten-partition-stays"),
        pytest.param(write(3, "a", columns=""), "", id="no-columns-named"),
        pytest.param(write(3, "c"), "new partitions c", id="new-partition"),
        pytest.param(write(3, "b", gone=("a", "b")), "gone: a", id="dropped-partition"),
        pytest.param(write(3, "a", columns="c2"), "changed columns", id="columns"),
    ],
)
def test_due_after_a_change_that_the_catalog_has_to_learn_and_never_otherwise(then: Write, reason: str) -> None:
    catalog = Catalog().synced(*FIRST)
    found = catalog.evaluate(*FIRST, then)
    assert (found.verdict is Verdict.DUE, reason in found.reason) == (bool(reason), True), found.reason


def test_quiet_table_gets_no_run_however_many_writes_and_archivings_pass() -> None:
    catalog = Catalog().synced(*FIRST)
    writes = [*FIRST]
    for second in range(3, 50):
        writes = [*writes, write(second, "a", "b")][-4:]  # the others are archived
        assert catalog.evaluate(*writes).verdict is Verdict.NOT_DUE


def test_what_was_archived_unseen_makes_it_due() -> None:
    catalog = Catalog().synced(*FIRST)
    assert "archived" in catalog.evaluate(write(9, "a")).reason


def test_partition_that_was_dropped_is_new_when_it_comes_back() -> None:
    catalog = Catalog().synced(*FIRST)
    dropped = write(3, gone=("b",))
    catalog.run(catalog.evaluate(*FIRST, dropped))
    assert catalog.evaluate(*FIRST, dropped).verdict is Verdict.NOT_DUE
    assert "new partitions b" in catalog.evaluate(*FIRST, dropped, write(4, "b")).reason


def test_partition_that_comes_while_a_run_is_at_work_makes_the_next_one_due() -> None:
    catalog = Catalog()
    due = catalog.evaluate(*FIRST)
    later = (*FIRST, write(3, "c"))
    catalog.evaluate(*later)
    catalog.run(due)
    assert "new partitions c" in catalog.evaluate(*later).reason


def test_run_that_failed_leaves_it_due() -> None:
    catalog = Catalog()
    catalog.run(catalog.evaluate(*FIRST), RunEnd.FAILED)
    assert catalog.evaluate(*FIRST).verdict is Verdict.DUE


def test_another_catalog_or_name_is_a_first_time_with_a_run_of_its_own() -> None:
    catalog = Catalog().synced(*FIRST)
    before = catalog.last_runs.of[Service.SYNC].key_instant
    for policy in (
        POLICY.replace(sync=POLICY.sync.replace(database="market")),
        POLICY.replace(
            hudi_options={"hoodie.meta.sync.client.tool.class": "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"}
        ),
    ):
        catalog.policy = policy
        due = catalog.evaluate(*FIRST)
        assert (due.verdict, due.key_instant != before) == (Verdict.DUE, True)
    catalog.run(due)
    assert catalog.evaluate(*FIRST).verdict is Verdict.NOT_DUE


def test_restore_makes_it_due_again_with_a_key_of_its_own() -> None:
    catalog = Catalog().synced(*FIRST)
    before = catalog.last_runs.of[Service.SYNC].key_instant
    restored = Instant(at(5), Action.RESTORE, State.COMPLETED, at(6), f"{at(5)}_{at(6)}.restore")
    due = catalog.evaluate(FIRST[0], plans=(restored,))
    assert (due.verdict, "restore" in due.reason, due.key_instant != before) == (Verdict.DUE, True, True)


def test_path_that_is_no_name_is_blocked_and_says_what_to_set() -> None:
    facts = TableFacts(replace(view(*FIRST), base_path="s3a://lake/my-orders;drop"))
    found = next(d for d in decide(facts, POLICY, NOW_MS) if d.service is Service.SYNC)
    assert (found.verdict, "set sync.table" in found.reason) == (Verdict.BLOCKED, True)
    named = POLICY.replace(sync=POLICY.sync.replace(table="orders"))
    assert next(d for d in decide(facts, named, NOW_MS) if d.service is Service.SYNC).verdict is Verdict.DUE


def test_memory_of_partitions_is_bounded() -> None:
    many = write(1, *(f"day={day}" for day in range(MAX_PARTITIONS + 50)))
    catalog = Catalog().synced(many)
    assert len(catalog.last_runs.synced.partitions) == MAX_PARTITIONS
    assert len(last_runs_to_text(catalog.last_runs)) < 40_000


def test_last_runs_of_a_table_without_a_catalog_have_nothing_of_it() -> None:
    assert "synced" not in last_runs_to_text(LastRuns(MappingProxyType({})))


def test_digest_of_columns_is_of_names_and_types_alone() -> None:
    first = '{"type":"record","name":"a","fields":[{"name":"id","type":"long"},{"name":"at","type":["null","string"]}]}'
    same = (
        '{"type":"record","name":"b","namespace":"n","fields":[{"name":"_hoodie_commit_time","type":"string"},'
        '{"name":"id","type":["null","long"],"default":null,"doc":"d"},{"name":"at","type":"string"}]}'
    )
    assert digest_columns(first) == digest_columns(same) != ""
    for other in (first.replace('"long"', '"int"'), first.replace('"at"', '"on"')):
        assert digest_columns(other) != digest_columns(first)
    kind = '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}'
    decimal = f'{{"type":"record","name":"a","fields":[{{"name":"d","type":{kind}}}]}}'
    assert digest_columns(decimal) != digest_columns(decimal.replace("9", "12"))
    assert digest_columns("not a schema") == digest_columns(None) == ""
