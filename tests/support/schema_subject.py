"""A subject of a schema registry in memory: versions, and no rule."""

from __future__ import annotations


class Subject:
    def __init__(self) -> None:
        self.versions: list[str] = []

    def register(self, schema: str) -> int:
        if schema not in self.versions:
            self.versions.append(schema)
        return self.versions.index(schema) + 1

    def find(self, number: int) -> str:
        return self.versions[number - 1]

    def find_latest(self) -> str | None:
        return self.versions[-1] if self.versions else None
