"""What the footer of a writer's base file makes of the settings of a service."""

import pytest

from lake_jobs.hudi.file_format import BLOOM_FILTER, BLOOM_TYPE, CODEC, FileFormat, find_bloom_filter


@pytest.mark.parametrize(
    ("footer", "filter_type"),
    [
        ({}, ""),
        ({"org.apache.hudi.bloomfilter": "..."}, "SIMPLE"),
        ({"org.apache.hudi.bloomfilter": "...", BLOOM_TYPE: "DYNAMIC_V0"}, "DYNAMIC_V0"),
    ],
)
def test_bloom_filter_is_the_one_of_the_footer(footer: dict[str, str], filter_type: str) -> None:
    assert find_bloom_filter(footer) == filter_type


def test_settings_name_only_what_the_file_shows() -> None:
    assert FileFormat("ZSTD", "SIMPLE").settings() == {CODEC: "zstd", BLOOM_FILTER: "SIMPLE"}
    assert FileFormat("UNCOMPRESSED", "").settings() == {CODEC: "uncompressed"}
