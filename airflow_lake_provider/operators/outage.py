"""For how long Airflow itself lets a task run while the API server is away, by Airflow's settings.

Read from Airflow 3.3's source: the task's supervisor ends the task after `[workers] max_failed_heartbeats` heartbeats
that failed; the scheduler, which needs no API server, fails it when its heartbeat is older than `[scheduler]
task_instance_heartbeat_timeout`; and a task's token that has run out meanwhile is accepted no more. The API server
renews a token when a fifth of `[execution_api] jwt_expiration_time` is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow.sdk.configuration import conf

WANTED_S = 600.0
RETURN_S = 40.0
"""Until the supervisor, which pauses longer and longer between its attempts, reaches a server that is back."""
RECOMMENDED = {
    "[workers] max_failed_heartbeats": 180,
    "[scheduler] task_instance_heartbeat_timeout": 900,
    "[execution_api] jwt_expiration_time": 3600,
}


@dataclass(frozen=True, slots=True)
class AirflowLimits:
    """Airflow's settings that end a task while the API server is away. Times in seconds."""

    max_failed_heartbeats: int
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    token_s: float

    def find_short(self, wanted_s: float = WANTED_S) -> dict[str, float]:
        """Return which settings end a task before `wanted_s`, and after how many seconds at the earliest."""
        survived = {
            "[workers] max_failed_heartbeats": (self.max_failed_heartbeats - 1) * self.heartbeat_interval_s,
            "[scheduler] task_instance_heartbeat_timeout": self.heartbeat_timeout_s
            - self.heartbeat_interval_s
            - RETURN_S,
            "[execution_api] jwt_expiration_time": self.token_s / 5 - self.heartbeat_interval_s - RETURN_S,
        }
        return {setting: max(0.0, survived_s) for setting, survived_s in survived.items() if survived_s < wanted_s}


def read_limits() -> AirflowLimits:
    """Return the settings of this worker; scheduler and API server should have the same."""
    return AirflowLimits(
        conf.getint("workers", "max_failed_heartbeats"),
        conf.getfloat("workers", "min_heartbeat_interval"),
        conf.getfloat("scheduler", "task_instance_heartbeat_timeout"),
        conf.getfloat("execution_api", "jwt_expiration_time"),
    )


def explain_short(limits: AirflowLimits) -> str:
    """Return which settings to change so that a job bears ten minutes without the API server; empty when none."""
    short = limits.find_short()
    if not short:
        return ""
    settings = ", ".join(f"{name} = {RECOMMENDED[name]} (now it holds {s:.0f} s)" for name, s in short.items())
    return f"Airflow ends this task when the API server is away for less than {WANTED_S:.0f} s; set {settings}"
