"""Prices of runs, as commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import size

if TYPE_CHECKING:
    from airflow_lake_provider.manager.read_model import QuotedPrice


def describe_benefit(price: QuotedPrice) -> str:
    """Return what a run is expected to bring: `1.2 GiB of log files merged, 30 files less`."""
    benefit = price.benefit
    parts = (
        f"{size(int(benefit.log_bytes))} of log files merged" if benefit.log_bytes else "",
        f"{benefit.files:,.0f} files less" if benefit.files else "",
        f"{benefit.instants:,.0f} instants less" if benefit.instants else "",
        f"{size(int(benefit.freed_bytes))} freed" if benefit.freed_bytes else "",
        f"counted {price.weight:g} times" if price.weight else "",
    )
    return ", ".join(filter(None, parts)) or "-"
