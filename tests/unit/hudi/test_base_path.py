from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ConfigError, LakeError, MalformedRequestError, PathNotAllowedError
from airflow_lake_provider.hudi.base_path import identity_of, normalise_base_path, require_allowed, table_id_of


@pytest.mark.parametrize(
    ("given_path", "normal"),
    [
        ("/lake/orders", "/lake/orders"),
        ("/lake//orders/", "/lake/orders"),
        ("file:/lake/orders", "/lake/orders"),
        ("file:///lake/orders", "/lake/orders"),
        ("file://localhost/lake/orders", "/lake/orders"),
        ("S3://bucket/lake//orders/", "s3://bucket/lake/orders"),
        ("hdfs://nn:8020/lake/orders", "hdfs://nn:8020/lake/orders"),
        ("/lake/a b;$(x)ü..", "/lake/a b;$(x)ü.."),
    ],
)
def test_normalise_gives_one_spelling(given_path: str, normal: str) -> None:
    assert normalise_base_path(given_path) == normal


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "s3://bucket",
        "s3://bucket/",
        "relative",
        "a/b",
        "/a\nb",
        "/a\x00",
        "/a\u202eb",
        "/a\u200bb",
        "file://host/x",
    ],
)
def test_normalise_of_no_absolute_path_is_malformed(path: str) -> None:
    with pytest.raises(MalformedRequestError):
        normalise_base_path(path)


@pytest.mark.parametrize("path", ["/a/../b", "/..", "/a/.", "s3://b/../c", "file:/a/..", "//a/../b"])
def test_normalise_of_dots_is_refused(path: str) -> None:
    with pytest.raises(PathNotAllowedError):
        normalise_base_path(path)


@given(st.text(max_size=50))
def test_normalise_of_any_text_is_stable_or_refused(text: str) -> None:
    try:
        normal = normalise_base_path("/" + text)
    except LakeError:
        return
    assert normalise_base_path(normal) == normal


@pytest.mark.parametrize(
    ("path", "roots", "allowed"),
    [
        ("/lake/orders", ("/lake",), True),
        ("/lake/orders", ("/other", "file:///lake/"), True),
        ("/lake", ("/lake",), True),
        ("/lake-evil/orders", ("/lake",), False),
        ("s3://bucket/lake/x", ("/lake",), False),
        ("s3://bucket/lake/x", ("s3://bucket/lake",), True),
        ("/lake/orders", (), False),
        ("s3a://bucket/lake/x", ("s3://bucket/lake",), True),
        ("hdfs://NN/lake/x", ("hdfs://nn:8020/lake",), True),
        ("hdfs://nn:9000/lake/x", ("hdfs://nn:8020/lake",), False),
        ("s3a://bucket/LAKE/x", ("s3://bucket/lake",), False),
    ],
)
def test_require_allowed(path: str, roots: tuple[str, ...], *, allowed: bool) -> None:
    if allowed:
        require_allowed(path, roots)
        return
    with pytest.raises(PathNotAllowedError, match="allowed_roots"):
        require_allowed(path, roots)


@given(st.text(max_size=80))
def test_table_id_is_safe_everywhere_whatever_the_path(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,80}", table_id_of("/lake/" + text))


def test_table_ids_of_equal_names_in_different_folders_differ() -> None:
    assert table_id_of("/a/orders") != table_id_of("/b/orders")
    assert table_id_of("/a/orders").startswith("orders-")


@pytest.mark.parametrize(
    ("root", "base_path", "allowed"),
    [
        ("s3a://bucket", "s3a://bucket/orders", True),
        ("s3a://bucket/", "s3a://bucket/sales/orders", True),
        ("s3a://bucket", "s3a://bucket-of-others/orders", False),
        ("hdfs://namenode:8020", "hdfs://namenode:8020/lake/orders", True),
        ("hdfs://namenode:8020", "hdfs://namenode:80201/lake/orders", False),
        ("/lake", "s3a://lake/orders", False),
    ],
)
def test_root_may_be_a_whole_store(root: str, base_path: str, *, allowed: bool) -> None:
    if allowed:
        require_allowed(base_path, (root,))
        return
    with pytest.raises(PathNotAllowedError):
        require_allowed(base_path, (root,))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3://b/lake/t", "s3a://b/lake/t", True),
        ("s3n://b/lake/t", "S3A://b//lake/t/", True),
        ("hdfs://NameNode/lake/t", "hdfs://namenode:8020/lake/t", True),
        ("hdfs://namenode:8021/lake/t", "hdfs://namenode:8020/lake/t", False),
        ("abfs://c@Account.dfs.core.windows.net/t", "abfss://c@account.dfs.core.windows.net/t", True),
        ("file:///lake/t", "/lake//t", True),
        ("s3://b/lake/t", "s3://b/lake/T", False),
        ("s3://b/lake/t", "gs://b/lake/t", False),
        ("/lake/t", "hdfs:///lake/t", False),
        ("webhdfs://NameNode:9870/lake/t", "hdfs://namenode:8020/lake/t", True),
        ("swebhdfs://namenode:9871/lake/t", "hdfs://namenode/lake/t", True),
        ("webhdfs://namenode:9871/lake/t", "hdfs://namenode/lake/t", False),
        ("hdfs://namenode:9870/lake/t", "hdfs://namenode/lake/t", False),
    ],
)
def test_spellings_of_one_path_are_one_table(one: str, other: str, *, same: bool) -> None:
    paths = normalise_base_path(one), normalise_base_path(other)
    assert (table_id_of(paths[0]) == table_id_of(paths[1])) is same
    assert identity_of(identity_of(paths[0])) == identity_of(paths[0])


@pytest.mark.parametrize(
    ("root", "base_path"),
    [
        ("hdfs://ns/lake", "hdfs:///lake/t"),
        ("hdfs://ns", "hdfs:///lake/t"),
        ("webhdfs://namenode:9870/lake", "hdfs:///lake/t"),
        ("hdfs:///lake", "hdfs://ns/lake/t"),
    ],
)
def test_path_without_a_namenode_is_no_second_name_of_a_table(root: str, base_path: str) -> None:
    with pytest.raises(PathNotAllowedError, match="may be a second name of a table below"):
        require_allowed(normalise_base_path(base_path), (root,))
    with pytest.raises(ConfigError, match="a table below them would have two names"):
        LakeSettings.from_options({"allowed_roots": f"{root}, {base_path}"})


@pytest.mark.parametrize(
    "roots", ["hdfs:///lake, hdfs:///other", "hdfs://a/lake, hdfs://b/lake", "hdfs:///lake, hdfs://ns/lakes, /lake"]
)
def test_roots_that_share_no_table_stand_next_to_each_other(roots: str) -> None:
    assert len(LakeSettings.from_options({"allowed_roots": roots}).allowed_roots) == roots.count(",") + 1


def test_mount_of_viewfs_is_no_second_name_of_a_table() -> None:
    with pytest.raises(PathNotAllowedError, match="use the path behind the mount, hdfs://<nameservice>"):
        normalise_base_path("viewfs://all/lake/t")
