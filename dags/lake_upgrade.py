"""Give many tables another version: checked, one first, approved by a person, then the others wave by wave."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.doctor.upgrade_check import UpgradeState, sum_up
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.arguments import step_retries, with_draft
from airflow_lake_provider.execution.upgrade import check_fleet
from airflow_lake_provider.hooks.lake import LakeHook, as_airflow_error
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.operators.approval import ASKED_AGAIN, MAX_SHOWN, LakeApprovalOperator
from airflow_lake_provider.operators.upgrade import HudiMappedUpgradeOperator, HudiUpgradeOperator

log = logging.getLogger(__name__)
SETTINGS = LakeSettings.from_conf(conf)

RETRIES = step_retries(SETTINGS.retry_delay_s)
CHECKED = "ti.xcom_pull(task_ids='check')"

DOC = """
### Give Hudi tables another version

**Before**: stop the tables' writers; see that all writers and readers have a release that knows the version.

1. `check` shows in its log each table with its version, and what forbids the change. A dry run ends here.
2. `canary` changes one table.
3. `approve` waits for a person (*Required Actions*), unless *Ask a person* is off.
4. `upgrade` changes the others, a few at once and wave by wave, until too many fail.

Each table is compacted first, and compared afterwards: where readers see other rows, it goes back to its version.

**When it fails**, clear the failed task: it goes on where it was interrupted. Until then no service runs on the table,
and no writer may. A lower version takes tables back.

    airflow dags trigger lake_upgrade -c '{"tables": ["/lake/*"], "from_versions": [6], "version": 9, "dry_run": true}'
"""

with DAG(
    dag_id="lake_upgrade",
    description="Gives Hudi tables another version",
    schedule=None,
    # A backfill would run for times that mean nothing here, a materialised asset without a table.
    allowed_run_types=["manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=16,
    max_active_tasks=64,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "upgrade"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "tables": Param(
                type="array",
                items={"type": "string", "minLength": 1},
                minItems=1,
                title="Tables",
                description="Base paths, or patterns of base paths that the registry knows (/lake/*)",
            ),
            "from_versions": Param(
                [],
                type="array",
                items={"type": "integer"},
                title="Only of versions",
                description="Tables of other versions are left out; empty: of each",
            ),
            "version": Param(9, type="integer", enum=[6, 8, 9], title="Version", description="What the tables get"),
            "canary": Param(
                None,
                type=["null", "string"],
                title="First table",
                description="Its base path; empty: the first one that is ready",
            ),
            "at_once": Param(2, type="integer", minimum=1, maximum=64, title="At once"),
            "wave": Param(
                10,
                type="integer",
                minimum=1,
                title="In a wave",
                description="The next wave begins when all tables of one have ended",
            ),
            "most_failed": Param(
                0, type="integer", minimum=0, title="May fail", description="After more failures the rest is skipped"
            ),
            "approval": Param(
                default=True,
                type="boolean",
                title="Ask a person",
                description="Wait for approval after the first table",
            ),
            "dry_run": Param(default=False, type="boolean", title="Dry run", description="Only check"),
        }
    ),
) as dag:

    @task.short_circuit(execution_timeout=timedelta(hours=1))
    def check() -> dict[str, Any]:
        """Return what the steps after this one do; nothing for a dry run."""
        params = get_current_context()["params"]
        target = int(params["version"])
        try:
            plans = check_fleet(LakeHook(), list(params["tables"]), [int(v) for v in params["from_versions"]], target)
            canary = normalise_base_path(str(params["canary"])) if params["canary"] else ""
        except LakeError as error:
            raise as_airflow_error(error) from error
        report = "\n".join([*(plan.report for plan in plans), sum_up(plans, target)])
        for line in report.splitlines():
            log.info("%s", line)
        if params["dry_run"]:
            return {}
        ready = [plan.base_path for plan in plans if plan.state in {UpgradeState.READY, UpgradeState.GOES_ON}]
        if not ready:
            raise AirflowFailException("no table is ready: see the lines above")
        if canary and canary not in ready:
            raise AirflowFailException(f"the first table {canary} is not ready: see the lines above")
        first = canary or ready[0]
        return {"report": report[-MAX_SHOWN:], "canary": first, "others": [path for path in ready if path != first]}

    @task(execution_timeout=timedelta(minutes=15))
    def list_others() -> list[dict[str, Any]]:
        """Return the operator's arguments for each table but the first one."""
        context = get_current_context()
        params = context["params"]
        others = context["ti"].xcom_pull(task_ids="check")["others"]
        budget = {name: int(params[name]) for name in ("at_once", "wave", "most_failed")}
        return [{"base_path": path, "version": int(params["version"]), "budget": budget} for path in others]

    checked = check()
    canary = HudiUpgradeOperator(
        task_id="canary",
        base_path="{{ " + CHECKED + "['canary'] }}",
        version="{{ params.version }}",
        **RETRIES,
    )
    approve = LakeApprovalOperator(
        task_id="approve",
        subject="{{ " + CHECKED + "['canary'] }} has version {{ params.version }}. Go on with "
        "{{ " + CHECKED + "['others'] | length }} tables?",
        body="{{ ti.xcom_pull(task_ids='canary')['reason'] }}\n\n```\n{{ " + CHECKED + "['report'] }}\n```",
        is_asked="{{ params.approval }}",
        **ASKED_AGAIN,
    )
    others = list_others()
    upgrade = HudiMappedUpgradeOperator.partial(
        task_id="upgrade", map_index_template="{{ task.base_path }}", **RETRIES
    ).expand_kwargs(others)
    checked >> canary >> approve >> others >> upgrade
