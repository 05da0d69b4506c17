"""Keeps the lock file of Hudi's FileSystemBasedLockProvider young while it is held: an old one counts as an orphan."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, WRITE_LOCK_FILESYSTEM_PATH
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.settings import LOCK_FILE_PROVIDER
from lake_jobs.hudi.store_clock import store_now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    folder = settings.getProperty(WRITE_LOCK_FILESYSTEM_PATH) or f"{base_path}/.hoodie"
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
