"""How a table's writers write base files: codec and bloom filter, from the footer of their newest one.

Hudi keeps these in the settings of each writer. A service without them would rewrite the table with Hudi's defaults, so
that over time all of it has another codec. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CODEC = "hoodie.parquet.compression.codec"
BLOOM_FILTER = "hoodie.bloom.index.filter.type"
BLOOM_TYPE = "hoodie_bloom_filter_type_code"


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What the footer of a base file shows."""

    codec: str
    bloom_filter: str
    """Type of the bloom filter; empty without one."""

    def settings(self) -> dict[str, str]:
        """Return the settings with which Hudi writes such files."""
        found = {CODEC: self.codec.lower()}
        return found | ({BLOOM_FILTER: self.bloom_filter} if self.bloom_filter else {})


def find_bloom_filter(footer: Mapping[str, str]) -> str:
    """Return the type of a base file's bloom filter by the keys and values of its footer; empty without one.

    Hudi names the type of a dynamic filter only.
    """
    return footer.get(BLOOM_TYPE) or ("SIMPLE" if any("bloomfilter" in key for key in footer) else "")
