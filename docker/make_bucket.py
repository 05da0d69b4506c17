"""Create the lake's bucket unless it exists: `python make_bucket.py NAME`. Keys come from the AWS variables."""

from __future__ import annotations

import os
import sys

from pyarrow.fs import FileType, S3FileSystem


def make_bucket(name: str) -> None:
    """Create one bucket; raises OSError when the store refuses."""
    store = S3FileSystem(
        endpoint_override=os.environ["S3_ENDPOINT"],
        region=os.environ.get("S3_REGION", "us-east-1"),
        allow_bucket_creation=True,
    )
    if store.get_file_info(name).type == FileType.NotFound:
        store.create_dir(name)


if __name__ == "__main__":
    make_bucket(sys.argv[1])
