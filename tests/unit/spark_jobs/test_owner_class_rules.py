"""Which classes of a table's owner a service needs."""

from __future__ import annotations

from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, MERGER_CLASSES
from lake_jobs.hudi.owner_class_rules import name_classes

SETTINGS = {
    LOCK_PROVIDER: "com.acme.Lock",
    MERGER_CLASSES: " com.acme.First, Second,org.apache.hudi.DefaultSparkRecordMerger",
    "hoodie.table.name": "com.acme.NoClass",
}
PROPERTIES = {
    "hoodie.table.keygenerator.class": "com.acme.Keys",
    "hoodie.compaction.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
}


def test_only_classes_that_are_not_of_hudi_are_searched_and_say_who_names_them() -> None:
    assert list(name_classes(SETTINGS, PROPERTIES, handles_rows=True)) == [
        ("com.acme.Lock", f"{LOCK_PROVIDER} of hudi_options"),
        ("com.acme.First", f"{MERGER_CLASSES} of hudi_options"),
        ("Second", f"{MERGER_CLASSES} of hudi_options"),
        ("com.acme.Keys", "hoodie.table.keygenerator.class of hoodie.properties"),
    ]


def test_services_that_handle_no_rows_do_without_the_classes_of_rows() -> None:
    assert list(name_classes(SETTINGS, PROPERTIES, handles_rows=False)) == [
        ("com.acme.Lock", f"{LOCK_PROVIDER} of hudi_options")
    ]
