"""docker/helm: its values name what there is, and secrets by reference alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_file import parse_tables_file

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
TEXT = (DOCKER / "helm" / "values.yaml").read_text(encoding="utf-8")
VALUES: dict[str, Any] = yaml.safe_load(TEXT)
SETTINGS = yaml.safe_load(VALUES["extraConfigMaps"]["lake-settings"]["data"])
SECRET = "airflow-lake"


def pins_of(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line[:1] not in "# ")


def test_options_of_lake_are_this_releases_and_no_secrets() -> None:
    settings = LakeSettings.from_options({key: str(value) for key, value in VALUES["config"]["lake"].items()})
    assert set(VALUES["config"]["lake"]) <= set(LakeSettings.model_fields)
    assert settings.allowed_roots
    assert not re.search(r"\w*(?:token|password|secret)\w*: +[\"']?\w{8,}", TEXT.replace(SECRET, ""), re.IGNORECASE)
    named = {each["secretName"] for each in VALUES["secret"]}
    named |= {each["valueFrom"]["secretKeyRef"]["name"] for each in VALUES["apiServer"]["env"]}
    named |= {VALUES[key] for key in VALUES if key.endswith("SecretName")}
    assert named == {SECRET, *VALUES["data"].values()} == {SECRET}


def test_tables_are_those_of_the_compose_file_but_for_thresholds() -> None:
    config = parse_tables_file(SETTINGS["tables.yaml"], "values.yaml")
    compose = parse_tables_file((DOCKER / "lake" / "tables.yaml").read_text(encoding="utf-8"), "tables.yaml")
    assert config.defaults.hudi_options == compose.defaults.hudi_options


def test_mounts_have_volumes_and_writable_places_for_a_root_that_is_read_only() -> None:
    volumes = {each["name"]: each for each in VALUES["volumes"]}
    mounts = {each["mountPath"]: each["name"] for each in VALUES["volumeMounts"]}
    assert set(mounts.values()) == set(volumes)
    assert VALUES["securityContexts"]["containers"]["readOnlyRootFilesystem"]
    image = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    (scratch,) = set(re.findall(r"SPARK_LOCAL_DIRS=(\S+)", image))
    assert {name for name, each in volumes.items() if "emptyDir" in each} == {mounts["/tmp"], mounts[scratch]}
    assert VALUES["config"]["lake"]["work_dir"] in mounts
    assert VALUES["config"]["lake"]["tables_file"] in mounts
    settings = {path.rpartition("/")[2] for path, name in mounts.items() if name == "lake-settings"}
    assert settings == set(SETTINGS)


def test_airflow_and_its_packages_are_those_of_the_image() -> None:
    image, more = pins_of("docker/airflow.txt"), pins_of("docker/helm/kubernetes.txt")
    assert VALUES["airflowVersion"] == image["apache-airflow"]
    assert "apache-airflow-providers-cncf-kubernetes" in more
    assert not set(image) & set(more)
    assert VALUES["config"]["core"]["dags_folder"] == VALUES["dagProcessor"]["dagBundleConfigList"][0]["kwargs"]["path"]
