"""Execute a repair: examine again, record it, act, examine again, record how it ended.

Whatever was found before may have changed since, so nothing is touched unless fresh evidence, by the store's own
clock, gives the same repair of the same unchanged files.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.diagnosis import diagnose
from airflow_lake_provider.doctor.evidence import SeenFile, collect_evidence
from airflow_lake_provider.doctor.repairs import (
    STILL_STUCK,
    Record,
    RemovedFile,
    find_allowed_repairs,
    keep_begun,
    keep_ended,
    kept_as,
    plan_repair,
)
from airflow_lake_provider.errors import LakeError, RepairRefusedError
from airflow_lake_provider.hudi.active_writes import heartbeat_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.evidence import Evidence
    from airflow_lake_provider.doctor.repairs import Repair, ServiceCall
    from airflow_lake_provider.storage.table_storage import Storage


class TableDoctor:
    """Examines one table and repairs what its policy allows.

    `start_service` starts a DAG run for a service call and returns its id; None leaves such repairs to the caller.
    `reads_all` reads the file of every instant: only so a damaged one is found that is not pending.
    Raises ConfigError when the policy's Hudi options hold no usable heartbeat interval.
    """

    def __init__(
        self,
        storage: Storage,
        policy: TablePolicy,
        by: str,
        now_ms: Callable[[], int],
        start_service: Callable[[ServiceCall], str] | None = None,
        *,
        reads_all: bool = False,
    ) -> None:
        self._storage = storage
        self._policy = policy.doctor
        self._rule = heartbeat_rule(policy.hudi_options)
        self._hudi_options = policy.hudi_options
        self._spark_conf = policy.spark_conf
        self._by = by
        self._now_ms = now_ms
        self._start_service = start_service
        self._reads_all = reads_all

    def examine(self) -> tuple[tuple[Finding, Repair], ...]:
        """Return every finding with its repair. Changes nothing."""
        evidence = self._examine_again(self._now_ms())
        found = diagnose(evidence, self._policy)
        return tuple((finding, plan_repair(finding, evidence, self._policy)) for finding in found)

    def _examine_again(self, now_ms: int) -> Evidence:
        return collect_evidence(
            self._storage,
            now_ms,
            self._rule,
            self._spark_conf,
            hudi_options=self._hudi_options,
            reads_all=self._reads_all,
        )

    def repair_all(self) -> tuple[Record, ...]:
        """Do every repair that the policy allows and that is safe now; one that is refused on the way is left out."""
        records = []
        for repair in find_allowed_repairs(self._examine_again(self._now_ms()), self._policy):
            if repair.call is not None and self._start_service is None:
                continue
            try:
                records.append(self.repair(repair))
            except RepairRefusedError:  # it changed since: the next examination finds its present state
                continue
        return tuple(records)

    def repair(self, repair: Repair) -> Record:
        """Do one repair and return its record.

        Raises RepairRefusedError when the policy does not allow it or it is no longer so, and what storage raises; what
        was moved until then stands in the record.
        """
        self._require_allowed(repair)
        finding = self._require_unchanged(repair, self._now_ms())
        moment = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        record = Record(
            record_id=f"{moment:%Y%m%d%H%M%S}-{repair.kind.value}-{secrets.token_hex(4)}",
            at=moment.isoformat(),
            by=self._by,
            kind=repair.kind.value,
            instant=repair.instant,
            evidence=(finding.message, *finding.blocks, *_described(repair)),
            does=repair.does,
        )
        store_ms = keep_begun(self._storage, record)
        removed: list[RemovedFile] = []
        try:
            self._require_unchanged(repair, store_ms or self._now_ms())
            record = self._start(repair.call, record) if repair.call else self._move_files(repair, record, removed)
        except LakeError as error:
            keep_ended(self._storage, replace(record, result=f"not repaired: {error}", removed=tuple(removed)))
            raise
        keep_ended(self._storage, record)
        return record

    def _start(self, call: ServiceCall, record: Record) -> Record:
        if self._start_service is None:
            raise RepairRefusedError(f"{record.does}: this process cannot start a service")
        run_id = self._start_service(call)
        return replace(record, run_id=run_id, result=f"run {run_id} was started")

    def _move_files(self, repair: Repair, record: Record, removed: list[RemovedFile]) -> Record:
        for file in repair.files:
            removed.append(self._move_away(file, record.record_id))  # noqa: PERF401 - what was moved so far is recorded
        left = any((finding.kind, finding.instant) == (repair.kind, repair.instant) for finding, _ in self.examine())
        return replace(record, result=STILL_STUCK if left else "repaired", removed=tuple(removed))

    def _move_away(self, file: SeenFile, record_id: str) -> RemovedFile:
        target = kept_as(record_id, file.path)
        try:
            self._storage.move(file.path, target)
        except FileNotFoundError as error:
            raise RepairRefusedError(f"{file.path} went away by itself") from error
        moved = self._storage.stat(target)
        if self._storage.moves_at_once and (moved is None or not _is_same(file, moved.size_bytes, moved.modified_ms)):
            # After the examination a process put another file there: give it back. (Hudi takes no such care when it
            # deletes a lock that has expired.)
            self._storage.move(target, file.path)
            raise RepairRefusedError(f"{file.path} was replaced by another process during its examination")
        return RemovedFile(file.path, target, file.size_bytes, file.modified_ms)

    def _require_allowed(self, repair: Repair) -> None:
        if repair.refusal:
            raise RepairRefusedError(f"{_named(repair)} is not repairable by the doctor: {repair.refusal}")
        if repair.kind not in self._policy.repairs:
            allowed = ", ".join(self._policy.repairs) or "none"
            raise RepairRefusedError(
                f"{_named(repair)}: the table's policy does not allow it; doctor.repairs of the tables file allows "
                f"{allowed}"
            )
        if repair.files and not self._storage.moves_at_once and repair.files[0].path.endswith("/lock"):
            raise RepairRefusedError(f"{_named(repair)}: this store cannot move a lock file in one step")

    def _require_unchanged(self, repair: Repair, now_ms: int) -> Finding:
        evidence = self._examine_again(now_ms)
        for finding in diagnose(evidence, self._policy):
            if (finding.kind, finding.instant) != (repair.kind, repair.instant):
                continue
            fresh = plan_repair(finding, evidence, self._policy)
            if fresh == repair:
                return finding
            raise RepairRefusedError(f"{_named(repair)} has changed: {fresh.refusal or 'its files are others now'}")
        raise RepairRefusedError(f"{_named(repair)} has vanished: there is nothing to repair")


def _is_same(file: SeenFile, size_bytes: int, modified_ms: int) -> bool:
    return (file.size_bytes, file.modified_ms) == (size_bytes, modified_ms)


def _described(repair: Repair) -> tuple[str, ...]:
    return tuple(
        f"{file.path}: {file.size_bytes} bytes, modified {datetime.fromtimestamp(file.modified_ms / 1000, UTC)}"
        for file in repair.files
    )


def _named(repair: Repair) -> str:
    return f"{repair.kind} {repair.instant}".rstrip()
