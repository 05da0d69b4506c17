"""Which settings of an operator the DAG's file itself says: those are as good as the tables file's, and no others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from airflow.sdk import DAG, XComArg, task

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.execution.arguments import SinkByHand, parse_of_file
from airflow_lake_provider.execution.rendering import read_settings
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

SETTINGS = {"spark.eventLog.dir": "file:/logs"}


def render(operator: Any, conf: dict[str, Any]) -> Any:
    """Return the copy of a task that runs, rendered as Airflow's task runner does it."""
    copy = operator.prepare_for_execution()
    run = {"dag": operator.dag, "dag_run": SimpleNamespace(conf={})}
    context: Any = {"params": conf, "ti": SimpleNamespace(map_index=0), **run}
    copy.render_template_fields(context, jinja2.Environment(autoescape=False))
    return context.get("task", copy)


def service(**arguments: Any) -> Any:
    return HudiTableServiceOperator(task_id="t", base_path="/lake/t", service="clean", **arguments)


def test_settings_that_stand_in_the_file_are_its_own() -> None:
    with DAG("users", default_args={"hudi_options": {"hoodie.a": 1}}):
        operator = service(spark_conf=SETTINGS, spark_conn_id="big")
    own = parse_of_file(render(operator, {}))
    assert (own.hudi_options, own.spark_conf, own.spark_conn_id) == ({"hoodie.a": "1"}, SETTINGS, "big")


def test_text_of_a_template_is_not_the_files() -> None:
    with DAG("users"):
        operator = service(
            spark_conf={"spark.jars": "{{ params.jars }}", **SETTINGS},
            hudi_options='{"hoodie.base": "b", {{ params.more }}}',
            spark_conn_id="{{ params.conn }}",
        )
    conf = {"jars": "evil.jar", "more": '"hoodie.b": "evil"', "conn": "evil"}
    ran = render(operator, conf)
    assert ran.spark_conf == {"spark.jars": "evil.jar", **SETTINGS}
    own = parse_of_file(ran)
    assert own.spark_conf.get("spark.jars") != "evil.jar"
    assert own.hudi_options == {}
    assert own.spark_conn_id != "evil"


def test_values_of_other_tasks_and_of_code_are_not_the_files() -> None:
    give: Any = lambda **_: {"spark.plugins": "x"}  # noqa: E731
    with DAG("users"):

        @task
        def find() -> dict[str, str]:
            return {}

        found: Any = find()
        operator = service(hudi_options=found, spark_conf={"spark.a": found, "spark.b": lambda **_: "x"})
        called: Any = HudiTableServiceOperator(task_id="c", base_path="/t", service="clean", spark_conf=give)
    assert isinstance(found, XComArg)
    assert (read_settings(operator.hudi_options), read_settings(operator.spark_conf)) == ({}, {})
    ran = render(called, {})
    assert ran.spark_conf == {"spark.plugins": "x"}
    assert parse_of_file(ran).spark_conf == {}


def test_arguments_of_partial_are_the_files_and_those_of_expand_are_not() -> None:
    with DAG("users"):
        operator = HudiTableServiceOperator.partial(task_id="t", service="clean", spark_conf=SETTINGS).expand_kwargs(
            [{"base_path": "/lake/t", "hudi_options": {"hoodie.a": "1"}}]
        )
    ran = render(operator, {})
    assert ran.hudi_options == {"hoodie.a": "1"}
    own = parse_of_file(ran)
    assert (own.hudi_options, own.spark_conf) == ({}, SETTINGS)


def test_argument_that_expand_replaces_is_not_the_files() -> None:
    with DAG("users"):
        operator = HudiTableServiceOperator.partial(task_id="t", service="clean", spark_conf=SETTINGS).expand_kwargs(
            [{"base_path": "/lake/t", "spark_conf": {"spark.eventLog.dir": "file:/other"}}], strict=False
        )
    ran = render(operator, {})
    assert ran.spark_conf.items() - parse_of_file(ran).spark_conf.items() == {("spark.eventLog.dir", "file:/other")}


def test_what_code_of_a_task_changes_while_it_runs_is_not_the_files() -> None:
    class Own(HudiTableServiceOperator):
        template_fields = ()

    with DAG("users") as dag:
        operator = Own(task_id="t", base_path="/lake/t", service="clean", spark_conf=dict(SETTINGS))
        mapped = Own.partial(task_id="m", service="clean", spark_conf=dict(SETTINGS)).expand(base_path=["/lake/t"])
    for written in (operator, mapped):
        ran = render(written, {})
        ran.spark_conf["spark.jars"] = "evil.jar"
        assert parse_of_file(ran).spark_conf == SETTINGS
    # An operator that a task creates and runs.
    made = HudiTableServiceOperator(
        task_id="made", dag=dag, base_path="/t", service="clean", spark_conf={"spark.jars": "evil.jar"}
    )
    made.render_template_fields({"params": {}}, jinja2.Environment(autoescape=False))
    assert parse_of_file(made).spark_conf == {}


@pytest.mark.parametrize("text", ["", "x", "[1]", "[" * 100_000, '{"a": {"b": 1}}', None, 5])
def test_what_is_no_mapping_of_plain_values_is_no_setting(text: Any) -> None:
    assert read_settings(text) == {}


def test_sink_of_a_dag_goes_where_its_file_says_with_the_connection_of_the_file_alone() -> None:
    places = {"url": "sqlite:////mirror", "schema_registry": "http://r:8081", "path": "ftp://mirror/x"}
    own = {**places, "conn_id": "mirror"}
    spark = {"spark.eventLog.dir": "file:/logs"}
    written = SinkByHand("sink x", "x", own, spark, file_options=own, file_spark_conf=spark)
    assert not written.sets_places
    written.check({}, LakeSettings())
    for place, text in (("url", "sqlite:////other"), ("conn_id", "prod"), ("path", "ftp://evil"), ("topic", "t")):
        changed = SinkByHand("sink x", "x", own | {place: text}, spark, file_options=own, file_spark_conf=spark)
        assert changed.sets_places
        if place == "topic":
            changed.check({}, LakeSettings())
        else:
            with pytest.raises(ServiceRefusedError):
                changed.check({}, LakeSettings())


def test_connection_that_a_run_chooses_logs_in_nowhere_but_where_it_points_itself() -> None:
    entry = {"options": {"conn_id": "own", "bootstrap_servers": "ours:9092"}}
    by_hand = SinkByHand("sink x", "kafka", {"conn_id": "own", "bootstrap_servers": "ours:9092"}, {})
    by_hand.check(entry, LakeSettings())
    with pytest.raises(ServiceRefusedError, match="bootstrap_servers stands next to conn_id"):
        replace(by_hand, options={**by_hand.options, "conn_id": "prod"}).check(entry, LakeSettings())
