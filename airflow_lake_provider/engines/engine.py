"""The interface of engines, and the values that pass through it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.job_contract import JobRequest


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One job, ready to start.

    `name` is for people; `tag` is unique to this job among all (lower-case letters, digits and `-`), so that an engine
    can find the job again by it alone. The driver finds its request at `request_path`. `host` starts the job. `conf`
    are the engine's settings; what an engine cannot use, it ignores.
    """

    engine: str
    name: str
    request: JobRequest
    request_path: str
    host: str
    conn_id: str = ""
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    jars: str = ""
    packages: str = ""

    @property
    def tag(self) -> str:
        """A name that no other job has."""
        return "lake-" + hashlib.sha256(self.request_path.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Handle:
    """A job that was started, or that somebody may have died while starting.

    `external_id` is what the engine needs to follow the job from another process; empty when the job does not outlive
    the process that started it, or when its start was not recorded.
    """

    job: EngineJob
    external_id: str = ""


class Engine(Protocol):
    """Runs jobs. One object serves one try of one task; handles may come from other tries, hosts and days."""

    def start(self, job: EngineJob) -> Handle:
        """Start the job and return soon. Raises EngineError; a job that failed to start must not start later."""

    def wait(self, handle: Handle) -> None:
        """Return when the job has ended, well or not: the timeline judges. Raises EngineError when that is unknown."""

    def stop(self, handle: Handle) -> None:
        """End the job, whoever started it; called from any thread, and again. Returns only when it has ended.

        Raises EngineError when that cannot be told: then no other job may begin (G2).
        """
