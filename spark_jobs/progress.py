"""The lines of a job in the Airflow task log."""

from __future__ import annotations


def say(table: str, message: str) -> None:
    """Print one line about one table; flushed, because a killed driver flushes nothing."""
    print(f"lake: {table}: {message}", flush=True)


def readable_bytes(size_bytes: int) -> str:
    """Print a size with three digits and a binary unit."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
