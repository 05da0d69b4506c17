"""Airflow retries exactly what the package's own errors call retriable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.errors import ConfigError, EngineError, LakeError, ServiceFailedError, StorageError
from airflow_lake_provider.hooks.lake import as_airflow_error
from airflow_lake_provider.operators.guard import HudiWriterGuardMixin

PACKAGE = Path(__file__).parents[3] / "airflow_lake_provider"


@pytest.mark.parametrize("error", [StorageError("away"), EngineError("away"), ServiceFailedError("away")], ids=repr)
def test_retriable_errors_leave_the_task_its_retries(error: LakeError) -> None:
    wrapped = as_airflow_error(error)
    assert isinstance(wrapped, AirflowException)
    assert not isinstance(wrapped, AirflowFailException)
    assert str(wrapped) == "away"


@pytest.mark.parametrize("error", [ConfigError("wrong"), LakeError("wrong"), ValueError("wrong")], ids=repr)
def test_all_other_errors_fail_the_task_for_good(error: Exception) -> None:
    wrapped = as_airflow_error(error)
    assert isinstance(wrapped, AirflowFailException)
    assert str(wrapped) == "wrong"


@pytest.mark.parametrize("wrong", [{"guard_tries": 0}, {"guard_options": {"perid_s": 1.0}}], ids=str)
def test_wrong_argument_of_a_guard_fails_the_task_for_good(wrong: dict[str, Any]) -> None:
    class Job(BaseOperator):
        def execute(self, context: Context) -> None:
            raise AssertionError("the job must not begin")

    class Guarded(HudiWriterGuardMixin, Job):
        pass

    operator = Guarded(task_id="job", hudi_base_path="/lake/orders", **wrong)
    with pytest.raises(AirflowFailException, match=next(iter(wrong))):
        operator.execute(Context())


def test_no_other_place_decides_by_retriable_which_error_airflow_gets() -> None:
    choice = re.compile(r"AirflowException if .*\belse\s+AirflowFailException")
    chosen = [path for path in PACKAGE.rglob("*.py") if choice.search(path.read_text(encoding="utf-8"))]
    assert [path.relative_to(PACKAGE).as_posix() for path in chosen] == ["hooks/lake.py"]
