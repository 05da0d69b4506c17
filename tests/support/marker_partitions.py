"""Partitions whose names differ in what a path may contain."""

from __future__ import annotations

PARTITIONS = [
    "",
    "2026/01/02",
    "event_date=2026-01-01",
    "a_b_c/d_e=1_2",
    "city=São Paulo",
    "has space=x y",
    "dot.ted=1.2/.hidden",
    "quote'\"%2F=,;",
    "x.marker.CREATE",
    "MARKERS0",
    "MARKERS.type",
    "MARKERS.type/MARKERS1",
    "x.crc",
    "x.crc/.y.crc",
]
