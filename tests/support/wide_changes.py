"""Changes with a column of each type, and how formats print them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from airflow_lake_provider.replication.change import Change, Op


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


LINE = {"type": "record", "name": "line", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}
WIDE_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "orders_record",
        "namespace": "hoodie.orders",
        "fields": [
            {"name": "_hoodie_commit_time", "type": optional("string")},
            {"name": "id", "type": "long"},
            {"name": "name", "type": optional("string")},
            {
                "name": "price",
                "type": optional(
                    {
                        "type": "fixed",
                        "name": "price",
                        "size": 16,
                        "logicalType": "decimal",
                        "precision": 38,
                        "scale": 4,
                    }
                ),
            },
            {"name": "tax", "type": optional({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})},
            {"name": "at", "type": optional({"type": "long", "logicalType": "timestamp-micros"})},
            {"name": "wall", "type": optional({"type": "long", "logicalType": "local-timestamp-micros"})},
            {"name": "day", "type": optional({"type": "int", "logicalType": "date"})},
            {"name": "raw", "type": optional("bytes")},
            {"name": "ratio", "type": optional("double")},
            {"name": "ok", "type": optional("boolean")},
            {"name": "lines", "type": optional({"type": "array", "items": optional(LINE)})},
            {"name": "first", "type": optional("line")},
            {"name": "notes", "type": optional({"type": "map", "values": optional("string")})},
        ],
    }
)
WIDE_JSON = (
    '{"id":7,"name":"Zoë 漢字 \\ud83d\\ude80 \\"q\\"","price":1234567890123456789012345678901234.5678,"tax":-0.10,'
    '"at":"1969-12-31T23:59:59.999999Z","wall":"2026-03-29T02:30:00.000001","day":"2026-02-28","raw":"AP9A",'
    '"ratio":0.1,"ok":false,"lines":[{"sku":"a","n":1},null],"first":{"sku":"b","n":2},"notes":{"k":"v","none":null}}'
)
WIDE: dict[str, Any] = {
    "id": 7,
    "name": 'Zoë 漢字 🚀 "q"',
    "price": Decimal("1234567890123456789012345678901234.5678"),
    "tax": Decimal("-0.10"),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "wall": datetime(2026, 3, 29, 2, 30, 0, 1),  # noqa: DTZ001 - a time without a zone is what the type means
    "day": date(2026, 2, 28),
    "raw": b"\x00\xff@",
    "ratio": 0.1,
    "ok": False,
    "lines": [{"sku": "a", "n": 1}, None],
    "first": {"sku": "b", "n": 2},
    "notes": {"k": "v", "none": None},
}
EMPTY_JSON = json.dumps({"id": 8, **dict.fromkeys([name for name in WIDE if name != "id"])})
EMPTY = {"id": 8, **dict.fromkeys([name for name in WIDE if name != "id"])}
WIDE_CHANGES = (
    Change(Op.INSERT, '{"id":7}', None, WIDE_JSON),
    Change(Op.UPDATE, '{"id":8}', EMPTY_JSON, EMPTY_JSON),
    Change(Op.DELETE, '{"id":7}', WIDE_JSON, None),
)
EXPECTED = [("i", {"id": 7}, None, WIDE), ("u", {"id": 8}, EMPTY, EMPTY), ("d", {"id": 7}, WIDE, None)]
