"""The file of a lock: kept young while it is held, and why it could not be made where it was not acquired."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import find_login_complaint
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, WRITE_LOCK_FILESYSTEM_PATH
from lake_jobs.driver.failure import LOCK_FILE_DENIED, Cause, as_text, causes_of, classify, describe, is_denied
from lake_jobs.hudi.files import META_FOLDER, open_path
from lake_jobs.hudi.settings import LOCK_FILE_PROVIDER
from lake_jobs.hudi.store_clock import store_now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

TOUCH_INTERVAL_S = 1.0


@contextmanager
def keep_lock_file(spark: SparkSession, client: Any) -> Iterator[None]:
    """Touch the lock file of a client each second; a client with another lock provider needs nothing.

    With `hoodie.write.lock.filesystem.expire`, any client removes a lock file that is older than these minutes.
    """
    config = client.getConfig()
    settings = config.getProps()
    base_path = str(config.getBasePath())
    if not str(settings.getProperty(LOCK_PROVIDER) or "").strip().endswith(LOCK_FILE_PROVIDER):
        yield
        return
    folder = _folder_of_lock(base_path, settings.getProperty(WRITE_LOCK_FILESYSTEM_PATH))
    fs, path = open_path(spark, f"{folder}/lock")
    stop = threading.Event()

    def touch() -> None:
        while not stop.wait(TOUCH_INTERVAL_S):
            try:
                fs.setTimes(path, store_now_ms(spark, base_path), -1)
            except Py4JJavaError as error:
                print(
                    f"lake: the lock file {path} was removed: {describe(causes_of(error.java_exception))}", flush=True
                )
                return

    thread = threading.Thread(target=touch, name="lake-lock-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def find_causes(
    spark: SparkSession, base_path: str, settings: Mapping[str, str], error: Py4JJavaError
) -> tuple[Cause, ...]:
    """Return why Hudi failed on a table: where it could not acquire the lock, first why no file can be made there.

    Hudi takes every failure to write its lock file for a lock that another client holds, and says nothing of it. So a
    file of another name is made next to it; each lock that lies in files needs that right, and every commit as well.
    """
    causes = causes_of(error.java_exception)
    if classify(causes) is not FailureKind.LOCK:
        return causes
    folder = _folder_of_lock(base_path, settings.get(WRITE_LOCK_FILESYSTEM_PATH))
    # Hudi's own unfinished files are called so, and readers of timelines pass them over.
    fs, path = open_path(spark, f"{folder}/0.probe.{uuid4()}")
    is_recursive = False
    try:
        fs.create(path, is_recursive).close()
        fs.delete(path, is_recursive)
    except Py4JJavaError as refused:
        found = causes_of(refused.java_exception)
        if find_login_complaint(map(as_text, found)) is not None:
            return (*found, *causes)
        if is_denied(found):
            what = f"no file can be made in {folder}, so the lock is not acquired: {describe(found)}"
            return (Cause(LOCK_FILE_DENIED, f"{what}; give the jobs' user the right to write there"), *causes)
        return (*causes, *found)
    return causes


def _folder_of_lock(base_path: str, setting: str | None) -> str:
    return setting or f"{base_path}/{META_FOLDER}"
