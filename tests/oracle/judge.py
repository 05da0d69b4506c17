"""Compares our answers about a table with Hudi's own. A difference has a kind, by which it is found again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.planner.periodic import decide_indexing
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot, pack, unpack
from airflow_lake_provider.timeline_server.wire import snapshot_from_dict, snapshot_to_dict
from lake_jobs.hudi.files import find_modified_ms
from lake_jobs.hudi.table import read_table_state
from lake_jobs.indexing.check import find_missing_writes
from lake_jobs.indexing.state import timeline_file
from tests.oracle.actions import World
from tests.oracle.history import Step
from tests.oracle.hudi_answers import MAX_READS, Hudi, HudiAnswers, Moment
from tests.oracle.our_answers import DAY_MS, POLL_MS, FreshAnswers, Ours, moments_of

PROPERTIES_LATE_MS = 31 * 60_000
"""docs/timelines.md: what writers change in the properties without an instant is seen within 30 minutes."""
INDEX_STEPS = frozenset({"index", "build_indexes", "build_indexes_by_hudi", "drop_index", "restore", "upgrade"})
SPELLED = {
    "column_stats": "column_stats",
    "record_index": "record_index",
    "bloom_filters": "bloom_filters",
    "partition_stats": "partition_stats",
    "secondary_index_customer": "secondary_index:customer",
}
SECONDARY = "secondary_index_customer"
NO_TIME = "0" * 14
"""How the instants begin by which Hudi's writers make an index themselves (`SOLO_COMMIT_TIMESTAMP`)."""
RECORD_INDEX = 5
"""The type of its records in the metadata table."""
BULK_INSERT, LOG_COMPACTION, REVIVED = "bulk-insert-unindexed", "log-compaction-unindexed", "revived-unindexed"
DOWNGRADED, UPGRADED, RESTORED = "listed-by-downgrade", "hidden-by-upgrade", "emptied-by-restore"
"""Differences that defects of Hudi explain (`known.py`): the history has had what causes them, for these rows."""
LOCKED = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


@dataclass(frozen=True, slots=True)
class Difference:
    """What kind of answer differs, and how."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Judge:
    """Follows one table from step to step."""

    def __init__(self, hudi: Hudi, world: World) -> None:
        self.hudi = hudi
        self.world = world
        self.ours = Ours(hudi.place, world.path)
        self.before: HudiAnswers | None = None
        self.is_dirty = False
        """Whether Hudi's view counts log files that no reader needs: in version 6 those of a write that did not commit,
        and those that a log compaction has merged, which stay in their file slice."""

        self.compacted: set[int] = set()
        """Keys that were deleted before a log compaction, since the secondary index is listed."""
        self.unindexed: dict[str, frozenset[int]] = {}
        """Keys of bulk inserts whose writers streamed metadata, by instant, since the secondary index is listed."""
        self.revived: set[int] = set()
        """Keys for which the record index has no place, though the table has them again."""
        self.hiding: frozenset[str] = frozenset()
        """Compactions that were planned in version 6, and pending when the table was upgraded."""
        self.had_archive = False
        """Whether commits were ever archived. Hudi's downgrade to version 6 leaves an archive without them."""

    def judge(self, step: Step) -> list[Difference]:
        """Compare everything after a step."""
        truth = self.hudi.ask(self.world.path)
        before, self.before, self.world.now = self.before, truth, truth
        is_uncommitted = truth.version < 8 and (self.world.held or step.kind in {"die", "roll_back_last", "restore"})
        self.is_dirty = self.is_dirty or bool(is_uncommitted) or "log_compaction" in step.kind
        self.had_archive = self.had_archive or bool(truth.archive)
        self._note_unindexed(truth, before, step)
        if before is not None and before.version < 8 <= truth.version:
            self.hiding = frozenset(before.pending("compaction"))
        fresh = self.ours.read()
        found = [*self._fresh(truth, fresh), *self._views(truth, before, step)]
        found += self._jobs(truth, before)
        found += self._markers()
        if step.kind in INDEX_STEPS or "index" in step.kind or step.draw % 7 == 0:
            found += self._index_content(truth)
        return found

    def end(self) -> list[Difference]:
        """Compare what only the whole history shows: each reader has found each commit once."""
        truth = self.hudi.ask(self.world.path)
        self.world.now = truth
        self.ours.let_time_pass(DAY_MS)
        found = [Difference("archive", said) for reader in self.ours.readers if (said := self.ours.poll(reader))]
        commits = truth.commits()
        for reader in self.ours.readers:
            times = Counter(reader.found)
            lost = sorted(name for name, completed in commits.items() if completed > reader.began and not times[name])
            twice = sorted(name for name, number in times.items() if number > 1)
            if lost:
                found.append(Difference("stream", f"{reader.source} reader from {reader.began} never found {lost}"))
            if twice:
                found.append(Difference("stream", f"{reader.source} reader from {reader.began} found twice {twice}"))
        return [*found, *self._index_content(truth)]

    def _note_unindexed(self, truth: HudiAnswers, before: HudiAnswers | None, step: Step) -> None:
        """Note whose rows Hudi has left out of the secondary index. A write that was rolled back left out none."""
        if before is None or SECONDARY not in {*truth.metadata_partitions} & {*before.metadata_partitions}:
            self.unindexed.clear()
            self.compacted.clear()
            return
        commits = truth.commits()
        if self.world.unindexed_keys:
            new = set(commits) - set(before.commits())
            self.unindexed |= {requested: self.world.unindexed_keys for requested, _ in new}
        there = {requested for requested, _ in commits}
        self.unindexed = {requested: keys for requested, keys in self.unindexed.items() if requested in there}
        if step.kind in {"log_compaction", "execute_log_compaction"}:
            self.compacted |= self.world.deleted

    # --- read afresh ----------------------------------------------------------------------------------------

    def _fresh(self, truth: HudiAnswers, fresh: FreshAnswers) -> Iterator[Difference]:
        yield from _unequal("timeline", truth.timeline, moments_of(fresh.timeline))
        for problem in fresh.timeline.problems:
            yield Difference("timeline", f"not understood: {problem}")
        yield from _unequal("properties", truth.properties, dict(fresh.properties.raw))
        yield from _unequal("archive", truth.archive, fresh.archive)
        for said in fresh.archive_problems:
            yield Difference("archive", said)
        yield from _unequal("plans", truth.plans, fresh.plans)
        yield from _unequal("index-plans", truth.index_plans, fresh.index_plans)
        ours = fresh.timeline.latest_write_without_holes()
        yield from _unequal("holes", truth.last_without_holes, "" if ours is None else ours.requested_time)
        building = {name for instant, names in truth.index_plans.items() for name in names if self._inflight(instant)}
        yield from _unequal("ready", set(truth.metadata_partitions) - building, set(fresh.ready))

    def _inflight(self, instant: str) -> bool:
        moments = self.before.timeline if self.before is not None else ()
        return any(m.requested == instant and m.state == "INFLIGHT" for m in moments)

    # --- views ----------------------------------------------------------------------------------------------

    def _views(self, truth: HudiAnswers, before: HudiAnswers | None, step: Step) -> Iterator[Difference]:
        chance = random.Random(step.draw)
        yield from self._shown("local-view", self.ours.shown("local"), truth)
        new = () if before is None else tuple(sorted(set(truth.commits()) - set(before.commits())))
        if self.world.result is not None:
            self.ours.hint()
            yield from self._shown("announced-view", self.ours.shown("announced"), truth)
        elif self.world.is_announced and new:
            self.ours.announce(tuple(requested for requested, _ in new))
            shown = self.ours.shown("announced")
            yield from _unequal("announced-view", truth.timeline, moments_of(shown.timeline))
        yield from self._manager(
            truth, is_hinted=self.world.result is not None or bool(self.world.is_announced and new)
        )
        is_late = chance.random() < 0.2
        self.ours.let_time_pass(PROPERTIES_LATE_MS if is_late else POLL_MS)
        silent = self.ours.shown("silent")
        yield from _unequal("silent-view", truth.timeline, moments_of(silent.timeline))
        if is_late:
            yield from _unequal("silent-view", truth.properties, dict(silent.properties.raw))
        for source in self.ours.views:
            pending = truth.pending("indexing")
            yield from _unequal(f"watcher-{source}", pending, self.ours.pending_builds(source))
        for said in self.ours.poll_now_and_then(chance, max(truth.commits().values(), default="")):
            yield Difference("archive", said)

    def _shown(self, kind: str, shown: TimelineSnapshot, truth: HudiAnswers) -> Iterator[Difference]:
        yield from _unequal(kind, truth.timeline, moments_of(shown.timeline))
        yield from _unequal(kind, truth.properties, dict(shown.properties.raw))
        same = replace(shown, as_of_ms=0)
        if unpack(pack(shown), shown.base_path, shown.version, 0) != same:
            yield Difference("wire", "packing and unpacking changes the snapshot")
        if replace(snapshot_from_dict(snapshot_to_dict(shown)), as_of_ms=0) != same:
            yield Difference("wire", "sending changes the snapshot")

    def _manager(self, truth: HudiAnswers, *, is_hinted: bool) -> Iterator[Difference]:
        """Compare what the manager decides by, and one decision that Hudi's answer already makes."""
        facts = self.ours.facts(is_hinted=is_hinted)
        # A pending clustering of version 6 is known by its plan; Hudi's timeline shows its file's action.
        as_hudi = tuple(
            m._replace(action="replacecommit") if truth.version < 8 and m.action == "clustering" else m
            for m in moments_of(facts.timeline)
        )
        yield from _unequal("manager-view", truth.timeline, as_hudi)
        yield from _unequal("manager-view", truth.properties, dict(facts.properties.raw))
        for problem in facts.view.problems:
            yield Difference("manager-view", str(problem))
        kept = [name for name in SPELLED if name in truth.metadata_partitions]
        if kept and truth.version >= 8 and not truth.index_plans:
            policy = TablePolicy(
                indexing=TablePolicy().indexing.replace(indexes=tuple(SPELLED[name] for name in kept)),
                hudi_options=LOCKED,
            )
            decision = decide_indexing(facts, policy, self.ours.clock())
            if decision.verdict is not Verdict.NOT_DUE:
                yield Difference("decision", f"the table has {kept}, yet: {decision.verdict} {decision.reason}")
        yield from self._slices(truth, facts.history)

    def _slices(self, truth: HudiAnswers, history: Any) -> Iterator[Difference]:
        sizes = {group: found.base_bytes for group, found in truth.slices.items() if found.base_bytes is not None}
        ours = dict(history.base_file_bytes)
        known = {group: sizes.get(group) for group in ours}
        yield from _unequal("slices", known, ours)
        if not self.had_archive and not self.is_dirty and not truth.pending("logcompaction"):
            yield from _unequal("slices", sizes, ours)
            logs = [found.logs for found in truth.slices.values()]
            counted = (history.backlog.log_files, history.backlog.most_log_files)
            is_hiding = not self.hiding.isdisjoint(truth.pending("compaction"))
            yield from _unequal(UPGRADED if is_hiding else "slices", (sum(logs), max(logs, default=0)), counted)

    # --- indexes --------------------------------------------------------------------------------------------

    def _jobs(self, truth: HudiAnswers, before: HudiAnswers | None) -> Iterator[Difference]:
        """Compare what a job of ours says that it did with what Hudi's properties list then."""
        result = self.world.result
        if result is None or before is None:
            return
        if "fails its check" in result.message or "FAILED" in result.message:
            yield Difference("index-check", f"a build without a writer: {result.message}")
        listed = set(truth.metadata_partitions)
        for instant in result.completed_instants:
            lacking = sorted(set(truth.built_by.get(instant, ())) - listed)
            if lacking:
                yield Difference("index-built", f"{instant} is completed, and {lacking} is not listed")
        for instant, names in before.index_plans.items():
            is_gone = instant not in truth.index_plans and instant not in truth.built_by
            planned = {name for left in truth.index_plans.values() for name in left}
            lost = sorted(set(names) - listed - planned)
            if is_gone and lost:
                yield Difference("index-built", f"plan {instant} of {names} is gone, and {lost} is not there")

    def _index_content(self, truth: HudiAnswers) -> Iterator[Difference]:
        """Compare what readers find by the indexes with a full scan, and our cheap check with that."""
        names = set(truth.metadata_partitions) - {"files"}
        if "files" not in truth.metadata_partitions:
            return
        building = names.intersection(truth.properties.get("hoodie.table.metadata.partitions.inflight", "").split(","))
        is_whole = True
        for found in self._lookups(names):
            is_of_build = found.kind.removeprefix("content-") in building
            difference = Difference(DOWNGRADED, found.text) if is_of_build else found
            if self.world.emptied:
                difference = Difference(RESTORED, found.text)
            is_whole = is_whole and difference.kind in {BULK_INSERT, REVIVED}
            yield difference
        if truth.version >= 8 and is_whole:
            yield from self._cheap_checks(truth, names)

    def _lookups(self, names: set[str]) -> Iterator[Difference]:
        full = self._rows(metadata=False)
        everything = sorted(map(tuple, full.collect()))
        if not everything:
            return
        chance = random.Random(len(everything))
        keys = {row[0] for row in chance.sample(everything, min(4, len(everything)))}
        customer, amount = chance.choice(everything)[2], chance.choice(everything)[3]
        indexed = self._rows(metadata=True)
        asked = {"files": (indexed, everything)}
        if "record_index" in names:
            expected = [row for row in everything if row[0] in keys]
            asked["record_index"] = (indexed.where(F.col("id").isin(*keys)), expected)
        if SECONDARY in names:
            expected = [row for row in everything if row[2] == customer]
            asked["secondary_index"] = (indexed.where(F.col("customer") == customer), expected)
        if names & {"column_stats", "partition_stats"}:
            expected = [row for row in everything if row[3] == amount]
            asked["column_stats"] = (indexed.where(F.col("amount") == amount), expected)
        ids = Counter(row[0] for row in everything)
        doubled = {key for key, number in ids.items() if number > 1}
        lacking = self._keys_without_place(set(ids) - doubled) if "record_index" in names else set()
        yield from self._say_lacking(lacking)
        for name, (query, expected) in asked.items():
            found = sorted(map(tuple, query.collect()))
            if name in {"record_index", "secondary_index"}:
                found = _with_doubled(found, expected, doubled, self.world.inserted)
                # Said above, for all of them.
                found += (Counter(row for row in expected if row[0] in lacking) - Counter(found)).elements()
                found.sort()
            if name == "secondary_index":
                for kind, explained in self._unindexed_keys().items():
                    lost = [row for row in (Counter(expected) - Counter(found)).elements() if row[0] in explained]
                    found = sorted([*found, *lost])
                    if lost:
                        yield Difference(kind, f"a look-up of customer {customer} does not find {lost}")
            yield from _unequal(f"content-{name}", expected, found)

    def _say_lacking(self, lacking: set[int]) -> Iterator[Difference]:
        revived = lacking & self.world.deleted if self.world.setup.type == "MOR" else set()
        # A secondary index leads to the place in the record index.
        self.revived |= revived
        if revived:
            yield Difference(REVIVED, f"a look-up by the record index does not find {sorted(revived)}")
        if lacking - revived:
            yield Difference("content-record_index", f"the index has no place for {sorted(lacking - revived)}")

    def _keys_without_place(self, keys: set[int]) -> set[int]:
        """Return the keys that the record index does not have; searches seldom show it.

        One of several keys hides that another one is lacking when both are in one file: that file is read for both.
        """
        index = self.hudi.spark.read.format("hudi").load(f"{self.world.path}/.hoodie/metadata")
        found = {int(row[0]) for row in index.where(f"type = {RECORD_INDEX}").select("key").collect()}
        return keys - found - self.world.inserted

    def _unindexed_keys(self) -> dict[str, set[int]]:
        """Return the keys that a defect of Hudi may have left out of the secondary index, by defect."""
        return {
            BULK_INSERT: set().union(*self.unindexed.values()),
            LOG_COMPACTION: self.compacted,
            REVIVED: self.revived,
        }

    def _rows(self, *, metadata: bool) -> Any:
        flag = str(metadata).lower()
        options = {"hoodie.metadata.enable": flag, "hoodie.enable.data.skipping": flag}
        table = self.hudi.spark.read.format("hudi").options(**options).load(self.world.path)
        return table.select("id", "city", "customer", "amount", "ts")

    def _is_made_by_a_writer(self, index: str) -> bool:
        """Whether a writer built the index once more, by a delta commit of no time, after a downgrade dropped it."""
        return any(f"_{NO_TIME}" in name for name in self.world.files.names(f"{METADATA_TABLE}/{index}"))

    def _cheap_checks(self, truth: HudiAnswers, names: set[str]) -> Iterator[Difference]:
        state = read_table_state(self.hudi.spark, self.world.path)
        # What is dropped is complete no more: the writes until it is built again are in no index.
        newest = {name: instant for instant in sorted(truth.built_by) for name in truth.built_by[instant]}
        for name in sorted(names & newest.keys()):
            instant = newest[name]
            if self._is_made_by_a_writer(name) or instant in self.world.given_up:
                continue
            begun_ms = find_modified_ms(self.hudi.spark, timeline_file(state, f"{instant}.indexing.inflight"))
            missing = find_missing_writes(self.hudi.spark, state, name, begun_ms or 0, instant)
            bulk_inserted = [write for write in missing if name == SECONDARY and write.split()[1] in self.unindexed]
            if bulk_inserted:
                yield Difference(BULK_INSERT, f"{name} is said to lack {bulk_inserted}, bulk inserts")
            missing = [write for write in missing if write not in bulk_inserted]
            if missing:
                yield Difference("index-check", f"readers find all rows, yet {name} is said to lack {missing}")

    def _markers(self) -> Iterator[Difference]:
        hudis = self.world.hudis_markers()
        for _ in range(MAX_READS):
            ours = {instant: self.ours.marked(instant) for instant in hudis}
            again = self.world.hudis_markers()
            if again == hudis:
                yield from _unequal("markers", hudis, ours)
                return
            hudis = again  # a write that is held goes on to make markers until it has to commit


def _with_doubled(
    found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], doubled: set[Any], inserted: set[int]
) -> list[tuple[Any, ...]]:
    """Return what a look-up found, with the other rows of keys that it found and that stand in the table twice.

    An insert or a bulk insert of a key that is there makes a second row, and the record index has one place for a key.
    When that row goes again, by a rollback or with its partition, the index knows neither (Hudi 1.2.0), so nothing is
    said of keys that were inserted so.
    """
    met = {row[0] for row in found} & doubled | inserted
    # The two rows may be alike: as many are added as were not found.
    others = Counter(row for row in expected if row[0] in met) - Counter(found)
    return sorted([*found, *others.elements()])


def _unequal(kind: str, hudi: Any, ours: Any) -> Iterator[Difference]:
    if hudi != ours:
        yield Difference(kind, _describe(hudi, ours))


def _describe(hudi: Any, ours: Any) -> str:
    if isinstance(hudi, dict):
        keys = [key for key in {**hudi, **ours} if hudi.get(key) != ours.get(key)]
        return "; ".join(f"{key}: Hudi {hudi.get(key)!r}, ours {ours.get(key)!r}" for key in sorted(keys)[:4])
    if isinstance(hudi, set | frozenset | tuple | list) and all(
        isinstance(item, Moment | str | tuple) for item in hudi
    ):
        only_hudi, only_ours = _minus(hudi, ours), _minus(ours, hudi)
        if only_hudi or only_ours:
            return f"Hudi alone {only_hudi[:4]}, ours alone {only_ours[:4]}"
    return f"Hudi {hudi!r}, ours {ours!r}"


def _minus(one: Iterable[Any], other: Iterable[Any]) -> list[Any]:
    others = set(other)
    return sorted((tuple(item) if isinstance(item, Moment) else item) for item in one if item not in others)
