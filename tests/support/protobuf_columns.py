"""Columns of a schema of Protocol Buffers, as its own compiler understands it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

PROTOC = shutil.which("protoc", path=str(Path(sys.executable).parent)) or "protoc"


def compile_file(text: str) -> descriptor_pool.DescriptorPool:
    """Return what protoc makes of a file. An error of protoc fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "it.proto").write_text(text, encoding="utf-8")
        command = [PROTOC, f"-I{folder}", f"--descriptor_set_out={folder}/set", "--include_imports", "it.proto"]
        subprocess.run(command, check=True, cwd=folder)
        files = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def columns(**kinds: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    )
