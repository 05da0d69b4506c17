"""Takes a metadata table that is gone, damaged or wrong out of a table, so that the next writer builds it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import METADATA_TABLE, Outcome, Service, ServiceResult
from lake_jobs.hudi.files import TableFiles, open_path
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import hold_lock, is_metadata_lost, open_client
from lake_jobs.services.integrity import OF_LISTING, load_damage
from lake_jobs.services.integrity_listing import compare_listings

if TYPE_CHECKING:
    from lake_jobs.services.context import ServiceContext


def withdraw_metadata_table(context: ServiceContext) -> ServiceResult:
    """Take a metadata table that is lost or wrong out of the properties, under the table's lock, by Hudi's own call.

    Writers of tables of version 9 fail while the properties list it, and build it when they do not. What its folder
    still has is kept next to it. A metadata table that is whole stays. Raises Py4JJavaError.
    """
    spark = context.spark
    path = context.job.base_path
    hudi = spark._jvm.org.apache.hudi
    with open_client(spark, path, context.settings, ALWAYS) as client, hold_lock(spark, client):
        state = context.read_table_state()
        if not state.metadata_partitions:
            return ServiceResult(
                Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message="the table has no metadata table"
            )
        damage = "it is gone" if is_metadata_lost(spark, state) else find_empty_base_file(context)
        damage = damage or find_wrong_list(context)
        if not damage:
            message = f"{METADATA_TABLE} is whole: nothing shows that it is damaged, so it stays"
            return ServiceResult(Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message=message)
        kept = hudi.metadata.HoodieTableMetadataUtil.deleteMetadataTable(
            state.meta_client,
            client.getEngineContext(),
            True,  # noqa: FBT003 - py4j has no keywords
        )
    where = f"; its files are kept as {kept}" if kept else ""
    listed = ", ".join(sorted(state.metadata_partitions))
    return ServiceResult(
        Service.METACOMPACTION,
        Outcome.COMPLETED,
        message=f"took the metadata table ({listed}) out of hoodie.properties, because {damage}{where}; a writer's "
        "next commit builds it again, without indexes that the writer's settings do not name",
    )


def find_empty_base_file(context: ServiceContext) -> str:
    """Return which base file of the metadata table has zero bytes, in words; empty when none has."""
    for partition in sorted(context.first_state.metadata_partitions):
        fs, folder = open_path(context.spark, f"{context.job.base_path}/{METADATA_TABLE}/{partition}")
        for file in fs.listStatus(folder) if fs.exists(folder) else ():
            name = str(file.getPath().getName())
            if name.endswith(".hfile") and not file.getLen():
                return f"{METADATA_TABLE}/{partition}/{name} is empty"
    return ""


def find_wrong_list(context: ServiceContext) -> str:
    """Return in what its list of files is wrong, where a check has found that and it still is; empty otherwise.

    The caller holds the table's lock, so nothing is committed meanwhile.
    """
    files = TableFiles(context.spark, context.job.base_path)
    known = [damage for kind in OF_LISTING for damage in load_damage(files, kind)]
    partitions = sorted({partition for damage in known for partition in damage.partitions})
    found = compare_listings(context.spark, context.job.base_path, partitions) if partitions else ()
    return "; ".join(damage.what for damage in found)
