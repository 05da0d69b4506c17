"""What Airflow shows of `[lake]` (`airflow config list --section lake`) is what the settings themselves are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_lake_provider.config.settings import SECRETS, LakeSettings
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.get_provider_info import get_provider_info

OPTIONS = get_provider_info()["config"]["lake"]["options"]

# Recorded: installations have these names in their airflow.cfg, and rely on these defaults. An option that is added
# needs no line here; its release adds it.
RECORDED = {
    "callback_tokens": ("string", ""),
    "service_tokens": ("string", ""),
    "tokens_file": ("string", ""),
    "allowed_roots": ("string", ""),
    "allowed_run_options": ("string", ""),
    "tables_file": ("string", ""),
    "tables_variable": ("string", "lake_tables"),
    "discovery_interval_s": ("float", "3600"),
    "max_notice_bytes": ("integer", "67108864"),
    "notices_per_s": ("integer", "200"),
    "notices_at_once": ("integer", "32"),
    "service_manager_needs_token": ("boolean", "True"),
    "loop_enabled": ("boolean", "True"),
    "loop_interval_s": ("float", "1"),
    "claim_lease_s": ("float", "60"),
    "executor_lease_s": ("float", "900"),
    "manager_patience_s": ("float", "600"),
    "sink_grace_s": ("float", "259200"),
    "heartbeat_timeout_s": ("float", "600"),
    "heartbeat_max_s": ("float", "21600"),
    "max_tables_in_memory": ("integer", "10000"),
    "timeline_server": ("string", "auto"),
    "timeline_server_url": ("string", ""),
    "timeline_snapshot_file": ("string", ""),
    "timeline_refresh_threads": ("integer", "8"),
    "timeline_verify_interval_s": ("float", "60"),
    "storage_conn_ids": ("string", ""),
    "manager_url": ("string", ""),
    "work_dir": ("string", ""),
    "engine": ("string", "spark-submit"),
    "warm_work_bytes": ("integer", "268435456"),
    "warm_at_once": ("integer", "4"),
    "warm_idle_s": ("float", "300"),
    "warm_max_age_s": ("float", "21600"),
    "warm_patience_s": ("float", "600"),
    "notifiers": ("string", ""),
    "spark_conn_id": ("string", "spark_default"),
    "replication_spark_conn_id": ("string", ""),
    "spark_jars": ("string", ""),
    "spark_packages": ("string", ""),
    "retry_delay_s": ("integer", "30"),
    "max_active_services": ("integer", "16"),
}


def test_airflow_sees_the_recorded_options_with_their_types_and_defaults() -> None:
    shown = {name: (option["type"], option["default"]) for name, option in OPTIONS.items()}
    assert {name: shown.get(name) for name in RECORDED} == RECORDED
    assert {name for name, option in OPTIONS.items() if option["sensitive"]} == {"callback_tokens", "service_tokens"}
    assert all(
        option["description"].endswith(".") and option["version_added"] == "0.1.0" for option in OPTIONS.values()
    )


def test_defaults_that_airflow_shows_are_those_in_force() -> None:
    shown = {name: option["default"] for name, option in OPTIONS.items()}
    assert LakeSettings.from_options(shown) == LakeSettings()


@dataclass
class FakeConf:
    """Airflow's configuration, with what was asked of it."""

    texts: dict[str, str]
    asked: set[str] = field(default_factory=set)

    def get(self, section: str, key: str, *, fallback: str) -> str | None:
        assert section == "lake"
        self.asked.add(key)
        return self.texts.get(key, fallback)


def test_settings_of_a_task_leave_the_secrets_alone() -> None:
    conf = FakeConf({"callback_tokens": "first-token", "service_tokens": "second-token", "engine": " flink "})
    of_a_task = LakeSettings.from_conf(conf)
    assert (of_a_task.callback_tokens, of_a_task.service_tokens, of_a_task.engine) == ((), (), "flink")
    assert conf.asked == OPTIONS.keys() - SECRETS
    assert LakeSettings.from_conf(conf, secrets=["service_tokens"]).service_tokens == ("second-token",)
    assert "callback_tokens" not in conf.asked
    assert LakeSettings.from_conf(conf, secrets=SECRETS).callback_tokens == ("first-token",)


def test_wrong_secret_is_named_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="service_tokens") as raised:
        LakeSettings.from_options({"service_tokens": "hunter2"})
    assert "hunter2" not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"


def test_nothing_else_reads_the_section() -> None:
    root = Path(__file__).parents[3]
    reads = re.compile(r"""\.get\w*\(\s*["']lake["']""")
    found = {
        str(path.relative_to(root))
        for folder in ("airflow_lake_provider", "dags", "spark_jobs")
        for path in (root / folder).rglob("*.py")
        if reads.search(path.read_text(encoding="utf-8"))
    }
    without_airflow = "airflow_lake_provider/config/airflow_options.py"
    assert found == {"airflow_lake_provider/config/settings.py", without_airflow}
    # `lake` starts without Airflow and without pydantic, and needs where the manager is and a token, nothing else.
    text = (root / without_airflow).read_text(encoding="utf-8")
    read = re.findall(r"""\.get\(\s*["']lake["'],\s*["'](\w+)["']""", text)
    assert set(read) == {"service_tokens", "manager_url"} <= set(LakeSettings.model_fields)
