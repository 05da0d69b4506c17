"""Where rounds are played: one Airflow, one standing Hudi writer, the postman between them, a watch on all drivers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from local_stack.airflow import LocalAirflow
from local_stack.processes import ServerProcess
from local_stack.writer_process import StandingWriter
from tests.system.conftest import LOCK_OPTIONS, SETTINGS, make_airflow
from tests.system.crashes.driver_watch import DriverWatch, kill_all, members_of_session, parent_of
from tests.system.crashes.faults import Fault, Victim
from tests.system.crashes.postman import Postman, to_url

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DELTA_COMMITS = 3
# Each process that opens the tables judges heartbeats by the same interval: the dead count as dead after ten seconds. A
# dead holder's lock expires after a minute, the shortest that there is.
OPTIONS = LOCK_OPTIONS | {
    "hoodie.client.heartbeat.interval_in_ms": "5000",
    "hoodie.write.lock.filesystem.expire": "1",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "500",
    "hoodie.write.lock.client.num_retries": "240",
}
COMPONENT_OF = {
    Victim.API_SERVER: "api-server",
    Victim.SCHEDULER: "scheduler",
    Victim.MACHINE: "scheduler",
    Victim.TRIGGERER: "triggerer",
    Victim.DAG_PROCESSOR: "dag-processor",
}


@dataclass
class Stage:
    """The processes of all rounds."""

    airflow: LocalAirflow
    writer: StandingWriter
    postman: Postman
    watch: DriverWatch
    abandoned: list[ServerProcess] = field(default_factory=list)
    """Sessions whose first process was killed alone."""

    @property
    def lake(self) -> Path:
        return self.airflow.allowed_roots[0]

    def configure(self, table: Path) -> None:
        """Name a table in the tables file: should all its notices be lost, it is found nevertheless."""
        options = "\n".join(f"    {key}: '{value}'" for key, value in OPTIONS.items())
        assert self.airflow.tables_file is not None
        part = self.airflow.tables_file.with_suffix(".part")
        part.write_text(
            "defaults:\n  heartbeat_timeout_s: 5\n"
            f"  compaction: {{delta_commits: {DELTA_COMMITS}, log_to_base_ratio: null}}\n"
            "  clean: {enabled: false}\n  archive: {enabled: false}\n"
            f"  hudi_options:\n{options}\n"
            f"tables:\n  - base_path: {table}\n",
            encoding="utf-8",
        )
        part.replace(self.airflow.tables_file)

    def kill(self, victim: Victim, table_id: str) -> bool:
        """Kill -9; False when there was no process to kill."""
        if victim in COMPONENT_OF:
            server = self.airflow.servers[COMPONENT_OF[victim]]
            whole = victim is not Victim.SCHEDULER
            killed = kill_all(members_of_session(server.process.pid) if whole else [server.process.pid])
            server.process.wait()
            if not whole:
                self.abandoned.append(server)
            return killed
        drivers = self.watch.living(table_id)
        if not drivers:
            return False
        task = parent_of(drivers[-1].pid)
        # An orphan's parent is no process of this test.
        if task is None or task == 1:
            return victim is Victim.DRIVER and kill_all([drivers[-1].pid])
        wanted = {Victim.DRIVER: drivers[-1].pid, Victim.TASK: task, Victim.SUPERVISOR: parent_of(task)}[victim]
        return wanted is not None and wanted != 1 and kill_all([wanted])

    def restart(self, fault: Fault) -> None:
        """Start a killed server again, with its clock where the fault wants it."""
        component = COMPONENT_OF.get(fault.victim)
        if component is not None:
            self.airflow.start_component(component, clock_env(fault.clock_s))

    def bury(self) -> None:
        """End what a killed scheduler left behind."""
        for server in self.abandoned:
            kill_all(members_of_session(server.process.pid))
        self.abandoned.clear()

    def close(self) -> None:
        self.postman.close()
        self.bury()
        self.writer.stop()
        sessions = [server.process.pid for server in self.airflow.servers.values()]
        self.airflow.stop()
        for session in sessions:
            kill_all(members_of_session(session))
        self.watch.close()


def open_stage(name: str) -> Stage:
    """Start everything and wait until it answers."""
    airflow = make_airflow(name)
    airflow.settings |= SETTINGS
    writer = StandingWriter(airflow.home)
    watch = DriverWatch(airflow.home / "lake" / "jobs")
    stage = Stage(airflow, writer, Postman(to_url(airflow.callback_url)), watch)
    try:
        airflow.start()
        writer.wait_until_ready()
        airflow.wait_for_dags()
    except BaseException:
        stage.close()
        raise
    return stage


def can_move_clocks() -> bool:
    return FAKETIME.exists()


def clock_env(ahead_s: float) -> dict[str, str]:
    """Return what moves a process's wall clock, and nothing else: files keep their times, waits their length."""
    if not ahead_s:
        return {}
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME": f"{ahead_s:+.1f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
