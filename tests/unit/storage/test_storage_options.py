"""What connections become; the pure part, without Airflow."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.storage.s3 import parse_options
from airflow_lake_provider.storage.store import StoreConnection, options_of


def options(conn_type: str, **fields: Any) -> dict[str, Any]:
    return options_of(StoreConnection("store", conn_type, **fields))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="nothing: the environment's credentials"),
        pytest.param({"login": "id", "password": "key"}, {"access_key": "id", "secret_key": "key"}, id="keys"),
        pytest.param(
            {"extra": {"aws_access_key_id": "id", "aws_secret_access_key": "key"}},
            {"access_key": "id", "secret_key": "key"},
            id="keys in the extra",
        ),
        pytest.param(
            {"login": "id", "password": "key", "extra": {"aws_access_key_id": "other"}},
            {"access_key": "id", "secret_key": "key"},
            id="the fields win over the extra",
        ),
        pytest.param(
            {"extra": {"aws_session_token": "t", "region_name": "eu-west-1", "role_arn": "arn:aws:iam::1:role/r"}},
            {"session_token": "t", "region": "eu-west-1", "role_arn": "arn:aws:iam::1:role/r"},
            id="token, region, role",
        ),
        pytest.param(
            {"extra": {"endpoint_url": "http://minio:9000/"}},
            {"endpoint_override": "minio:9000", "scheme": "http"},
            id="endpoint with scheme",
        ),
        pytest.param(
            {"extra": {"endpoint_url": "minio:9000"}}, {"endpoint_override": "minio:9000"}, id="bare endpoint"
        ),
        pytest.param(
            {"extra": {"endpoint_url": "http://all", "service_config": {"s3": {"endpoint_url": "https://s3"}}}},
            {"endpoint_override": "s3", "scheme": "https"},
            id="S3's own endpoint",
        ),
        pytest.param(
            {"extra": {"region_name": "a", "storage_options": {"region": "b", "anonymous": True}}},
            {"region": "b", "anonymous": True},
            id="storage_options win",
        ),
    ],
)
def test_aws(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert options("aws", **fields) == expected
    parse_options(expected)  # S3 takes all of them


@pytest.mark.parametrize("fields", [{"login": "id"}, {"password": "key"}])
def test_aws_with_half_of_the_keys_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="'store' has only one of login and password"):
        options("aws", **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"host": "nn", "port": 8020}, {"fs.defaultFS": "hdfs://nn:8020"}, id="host and port"),
        pytest.param({"host": "lake"}, {"fs.defaultFS": "hdfs://lake"}, id="nameservice"),
        pytest.param(
            {"extra": {"dfs.ha.namenodes.lake": "a,b", "auto": 1}},
            {"dfs.ha.namenodes.lake": "a,b"},
            id="Hadoop",
        ),
        pytest.param(
            {"extra": {"principal": "airflow@REALM", "keytab": "/etc/airflow.keytab"}},
            {"kerberos_principal": "airflow@REALM", "kerberos_keytab": "/etc/airflow.keytab"},
            id="Kerberos",
        ),
        pytest.param({"extra": {"config_dir": "/etc/hadoop"}}, {"config_dir": "/etc/hadoop"}, id="files"),
    ],
)
def test_hdfs(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert options("hdfs", **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"host": "nn", "port": 9870}, {}, id="the base path names the NameNode"),
        pytest.param({"login": "me", "password": "key"}, {"user": "me", "password": "key"}, id="user"),
        pytest.param({"extra": {"principal": "me@REALM"}}, {"kerberos": True}, id="Kerberos"),
        pytest.param({"extra": {"use_ssl": "True"}}, {"use_https": True}, id="TLS"),
    ],
)
def test_webhdfs(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert options("webhdfs", **fields) == expected


@pytest.mark.parametrize("value", [{"token": "t"}, '{"token": "t"}'], ids=["object", "text"])
def test_any_other_type_gives_the_storage_options_of_its_extra(value: object) -> None:
    assert options("google_cloud_platform", login="ignored", extra={"storage_options": value}) == {"token": "t"}
    assert options("google_cloud_platform", extra={"key_path": "x"}) == {}


@pytest.mark.parametrize("value", ["{", "[]", 5, ["a"]])
def test_storage_options_that_are_no_object_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="'store'"):
        options("generic", extra={"storage_options": value})


def test_secrets_are_not_printed() -> None:
    connection = StoreConnection("store", "aws", login="id", password="hidden", extra={"aws_session_token": "hidden"})
    assert "hidden" not in repr(connection)
