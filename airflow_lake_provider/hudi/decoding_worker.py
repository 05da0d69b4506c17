"""The process that `decoding_process` starts: it decodes the files that it reads from its caller, within its limits."""

from __future__ import annotations

from airflow_lake_provider.hudi.decoding_process import run
from airflow_lake_provider.hudi.file_content import decode_here

if __name__ == "__main__":
    run(decode_here)
