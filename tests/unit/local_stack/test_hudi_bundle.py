"""Another bundle is taken where `LAKE_HUDI_BUNDLE` names it, and shares no archive of classes with the default one."""

from __future__ import annotations

from pathlib import Path

from local_stack.hudi_bundle import BUNDLE_VARIABLE, VERSION, bundle_jar, hudi_classes_of, jar_of


def test_default_bundle_is_taken_unless_another_one_is_named(tmp_path: Path) -> None:
    own = tmp_path / "own.jar"
    assert bundle_jar({}) == bundle_jar({BUNDLE_VARIABLE: ""}) == jar_of(VERSION)
    assert bundle_jar({BUNDLE_VARIABLE: str(own)}) == own.resolve()


def test_bundles_share_no_archive_of_classes(tmp_path: Path) -> None:
    jars = [jar_of(VERSION), jar_of("1.1.1"), tmp_path / "a" / "hudi.jar", tmp_path / "b" / "hudi.jar"]
    assert len({hudi_classes_of(jar) for jar in jars}) == len(jars)
    assert hudi_classes_of(jar_of(VERSION).resolve()) == hudi_classes_of(jar_of(VERSION))
