"""The process that `decoding_process` starts: it decodes the files that it reads from its caller, within its limits."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

from airflow_lake_provider.hudi.decoding_process import MAX_PROCESS_BYTES, serve
from airflow_lake_provider.hudi.file_content import decode_here


def main() -> None:
    """Serve the caller, within this process's memory."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_PROCESS_BYTES if most == resource.RLIM_INFINITY else min(MAX_PROCESS_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(decode_here, os.fdopen(0, "rb", buffering=0, closefd=False), sys.stdout.buffer)


if __name__ == "__main__":
    main()
