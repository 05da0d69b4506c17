"""What Hudi itself says of a table, through its own classes in the JVM."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.oracle.history import History
    from tests.oracle.places import Place

_INSTANT = re.compile(r"\[(?:==>)?(\d+)(?:__(\d+))?__([a-z]+)__([A-Z]+)\]")
_IN_COMPACTION = re.compile(r"HoodieFileGroupId\(partitionPath=([^,]*), fileId=([^)]*)\)=\((\d+),")
_IN_CLUSTERING = re.compile(r"HoodieFileGroupId\(partitionPath=([^,]*), fileId=([^)]*)\)=\[==>(\d+)__")
WRITES = ("commit", "deltacommit", "replacecommit")
MAX_READS = 5

FileGroups = frozenset[tuple[str, str]]


class Moment(NamedTuple):
    """An instant: times of request and completion (empty while it is pending), action and state."""

    requested: str
    action: str
    state: str
    completed: str


class Slice(NamedTuple):
    """The newest file slice of a file group: bytes of the base file (None without one), and number of log files."""

    base_bytes: int | None
    logs: int


@dataclass(frozen=True, slots=True)
class HudiAnswers:
    """All answers about one table at one moment."""

    version: int
    timeline: tuple[Moment, ...]
    archive: frozenset[Moment]
    properties: dict[str, str]
    plans: dict[str, FileGroups]
    """File groups of each pending compaction, log compaction and clustering, by requested time."""
    index_plans: dict[str, tuple[str, ...]]
    last_without_holes: str
    metadata_partitions: tuple[str, ...]
    slices: dict[tuple[str, str], Slice]
    built_by: dict[str, tuple[str, ...]]
    """Indexes that each completed `indexing` of the timeline says it built."""

    def commits(self) -> dict[tuple[str, str], str]:
        """Return the completion of each completed write, active or archived, by requested time and action."""
        moments = (*self.archive, *self.timeline)
        return {(m.requested, m.action): m.completed for m in moments if m.action in WRITES and m.completed}

    def pending(self, *actions: str) -> tuple[str, ...]:
        return tuple(
            m.requested for m in self.timeline if m.state != "COMPLETED" and (not actions or m.action in actions)
        )


def moments_of(text: str) -> tuple[Moment, ...]:
    found = _INSTANT.findall(text)
    if not found and text.strip("[] "):
        raise ValueError(f"not a list of Hudi's instants: {text[:200]}")
    # In layout 1 Hudi gives pending instants their file's time as well.
    return tuple(
        Moment(requested, action, state, completed if state == "COMPLETED" else "")
        for requested, completed, action, state in found
    )


class Hudi:
    """Asks Hudi; each answer is read afresh."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self.spark = spark
        self.place = place
        self.jvm: Any = spark._jvm
        self.hudi = self.jvm.org.apache.hudi
        # Refused writes are a part of histories, and judged.
        spark.sparkContext.setLogLevel("OFF")
        self._json = self.jvm.com.fasterxml.jackson.databind.ObjectMapper()

    def command(self, history: History) -> str:
        """Return how to run a history alone, where this session's tables lie."""
        return history.command() if self.place.kind == "local" else f"{history.command()} --store {self.place.kind}"

    def open(self, path: str) -> Any:
        """Return Hudi's meta client of the table as it is now."""
        conf = self.hudi.storage.hadoop.HadoopStorageConfiguration(self.spark._jsc.hadoopConfiguration())
        builder = self.hudi.common.table.HoodieTableMetaClient.builder()
        return builder.setConf(conf).setBasePath(path).build()

    def ask(self, path: str) -> HudiAnswers:
        meta = self.open(path)
        config, timeline = meta.getTableConfig(), meta.getActiveTimeline()
        archived = meta.getArchivedTimeline().filterCompletedInstants()
        last = timeline.getContiguousCompletedWriteTimeline().lastInstant()
        return HudiAnswers(
            version=int(config.getTableVersion().versionCode()),
            timeline=moments_of(str(timeline.getInstants().toString())),
            archive=frozenset(moments_of(str(archived.getInstants().toString()))),
            properties=json.loads(str(self._json.writeValueAsString(config.getProps()))),
            plans=self._plans(meta),
            index_plans=self._index_plans(meta, timeline.filterPendingIndexTimeline()),
            last_without_holes=str(last.get().requestedTime()) if last.isPresent() else "",
            metadata_partitions=tuple(sorted(map(str, config.getMetadataPartitions()))),
            slices=self._slices(meta),
            built_by=self._index_plans(meta, timeline.filterCompletedIndexTimeline()),
        )

    def markers(self, path: str, client: Any, instant: str) -> FileGroups:
        """Return the file groups that an instant's markers name, by Hudi's own reader of markers."""
        table = self.hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
        found = self._read_markers(table, client, instant)
        groups = set()
        for marker in map(str, found):
            partition, _, name = marker.rpartition("/")
            partition = partition.removeprefix(path).strip("/").rpartition(f"{instant}/")[2]
            groups.add((partition, name.removeprefix(".").split("_")[0]))
        return frozenset(groups)

    def _read_markers(self, table: Any, client: Any, instant: str) -> Any:
        utils = self.hudi.table.marker.MarkerBasedRollbackUtils
        for _ in range(MAX_READS - 1):
            try:
                return utils.getAllMarkerPaths(table, client.getEngineContext(), instant, 1)
            except Py4JJavaError as error:
                # A marker went between the listing and the question for its permissions: the held write goes on.
                if "No such file" not in str(error):
                    raise
        return utils.getAllMarkerPaths(table, client.getEngineContext(), instant, 1)

    def _plans(self, meta: Any) -> dict[str, FileGroups]:
        compactions, clusterings = self.hudi.common.util.CompactionUtils, self.hudi.common.util.ClusteringUtils
        found = [
            *_IN_COMPACTION.findall(str(compactions.getAllPendingCompactionOperations(meta).toString())),
            *_IN_COMPACTION.findall(str(compactions.getAllPendingLogCompactionOperations(meta).toString())),
            *_IN_CLUSTERING.findall(str(clusterings.getAllFileGroupsInPendingClusteringPlans(meta).toString())),
        ]
        plans: dict[str, set[tuple[str, str]]] = {}
        for partition, file_id, instant in found:
            plans.setdefault(instant, set()).add((partition, file_id))
        return {instant: frozenset(groups) for instant, groups in plans.items()}

    def _index_plans(self, meta: Any, timeline: Any) -> dict[str, tuple[str, ...]]:
        active, generator = meta.getActiveTimeline(), meta.getInstantGenerator()
        plans = {}
        for moment in moments_of(str(timeline.getInstants().toString())):
            plan = active.readIndexPlan(generator.getIndexRequestedInstant(moment.requested))
            infos = plan.getIndexPartitionInfos()
            plans[moment.requested] = tuple(str(info.getMetadataPartitionPath()) for info in infos)
        return plans

    def _slices(self, meta: Any) -> dict[tuple[str, str], Slice]:
        context = self.hudi.common.engine.HoodieLocalEngineContext(meta.getStorageConf())
        visible = meta.getCommitsAndCompactionTimeline().filterCompletedAndCompactionInstants()
        views = self.hudi.common.table.view.HoodieTableFileSystemView
        view = views.fileListingBasedFileSystemView(context, meta, visible)
        slices: dict[tuple[str, str], Slice] = {}
        try:
            by_metadata_table = False
            for partition in self.hudi.common.fs.FSUtils.getAllPartitionPaths(context, meta, by_metadata_table):
                for found in view.getLatestMergedFileSlicesBeforeOrOn(partition, "99991231235959999").toArray():
                    base = found.getBaseFile()
                    size = int(base.get().getFileSize()) if base.isPresent() else None
                    slices[str(partition), str(found.getFileId())] = Slice(size, int(found.getLogFiles().count()))
        finally:
            view.close()
        return slices
