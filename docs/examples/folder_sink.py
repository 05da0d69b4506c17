"""A sink of one's own: a folder of text files, one for each commit."""

import os
from pathlib import Path

from airflow_lake_provider.errors import SinkFencedError
from airflow_lake_provider.replication.change import message_of
from airflow_lake_provider.replication.checkpoint import to_text


class FolderSink:
    """Option: `folder`. The file of a commit ends with its checkpoint and appears whole, under a number."""

    def __init__(self, settings):
        self.settings = settings
        self.folder = Path(settings.options["folder"]) / settings.stream
        self.lines = []

    def open(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        files = sorted(self.folder.glob("*.txt"))
        return files[-1].read_text().splitlines()[-1] if files else None

    def write(self, batch):
        for change in batch.changes:
            message = message_of(change, batch.commit, self.settings.mode)
            self.lines.append(message or f'{{"key":{change.key},"deleted":true}}')

    def commit(self, checkpoint):
        target = self.folder / f"{checkpoint.sequence:09d}.txt"
        part = self.folder / f".{os.getpid()}.{id(self)}"
        part.write_text("\n".join([*self.lines, to_text(checkpoint)]))
        self.lines = []
        try:
            os.link(part, target)  # fails when a rival took the number
        except FileExistsError:
            raise SinkFencedError(f"{target} is there already") from None
        finally:
            part.unlink()

    def close(self):
        self.lines = []
