"""Keys of an erasure: read, hashed, found in bytes, and what keeps a file that has one."""

from __future__ import annotations

import gzip
import json
import struct

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from lake_jobs.services.erasure_rules import (
    ErasedKey,
    Keepers,
    Place,
    Receipt,
    Trace,
    UnreadableError,
    describe_receipt,
    explain_place,
    find_in_bytes,
    find_in_log,
    hash_key,
    hide_keys,
    list_partitions,
    read_keys,
    unpack,
    write_receipt,
)

MAIL = "ada@example.org"
FILE = "p/fg-0_0-1-2_20260101000000000.parquet"
LOG = "p/.fg-0_20260102000000000.log.1_0-1-2"


def test_keys_are_read_with_the_lines_that_name_them() -> None:
    content = b'{"key": "1"}\n\n{"key": "b", "partition": "p=1"}\n'
    assert read_keys(content) == (ErasedKey(1, "1"), ErasedKey(3, "b", "p=1"))


@pytest.mark.parametrize("line", ["secret", '{"key": 4711}', '{"key": ""}', '{"key": "secret", "other": "x"}', "[1]"])
def test_wrong_line_is_named_by_its_number_alone(line: str) -> None:
    with pytest.raises(ServiceRefusedError, match=r"^line 2 of keys.jsonl is not") as error:
        read_keys(f'{{"key": "1"}}\n{line}\n'.encode())
    assert "secret" not in str(error.value)
    assert "4711" not in str(error.value)


def test_too_many_keys_and_none_are_refused() -> None:
    with pytest.raises(ServiceRefusedError, match="0 keys"):
        read_keys(b"\n")
    with pytest.raises(ServiceRefusedError, match="1,001 keys"):
        read_keys(b'{"key": "1"}\n' * 1001)


def test_hash_depends_on_key_partition_and_secret() -> None:
    hashes = {
        hash_key("s", ErasedKey(1, "a")),
        hash_key("s", ErasedKey(1, "a", "p")),
        hash_key("s", ErasedKey(1, "b")),
        hash_key("t", ErasedKey(1, "a")),
    }
    assert len(hashes) == 4
    assert hash_key("s", ErasedKey(2, "a")) == hash_key("s", ErasedKey(1, "a"))


def test_keys_in_an_error_are_hidden_and_longer_words_stay() -> None:
    text = hide_keys(f"no record {MAIL} in ada@example.orgs, 17, 170", [ErasedKey(1, MAIL), ErasedKey(2, "17")], "s")
    assert MAIL + " " not in text
    assert text.endswith("170")
    assert " 17," not in text


def hfile_row(key: str) -> bytes:
    row = struct.pack(">h", len(key)) + key.encode() + bytes(10)
    return struct.pack(">ii", len(row), 3) + row + b"abc"


def test_key_is_found_as_text_with_its_length_and_as_a_row() -> None:
    long, middle, short = ErasedKey(1, MAIL), ErasedKey(2, "ada-1"), ErasedKey(3, "7")
    assert find_in_bytes([b"x" + MAIL.encode() + b"x"], [long, middle, short]) == {1}
    assert find_in_bytes([b"ada-1 7"], [long, middle, short]) == set()
    assert find_in_bytes([b"\x00\x0aada-1"], [long, middle, short]) == {2}
    assert find_in_bytes([b"\x00" * 9 + b"\x02" + b"7"], [short]) == set()
    assert find_in_bytes([b"head" + hfile_row("7")], [long, middle, short]) == {3}
    assert find_in_bytes([b"head" + hfile_row("70")], [short]) == set()


def test_packed_blocks_are_unpacked_and_other_packings_are_no_proof() -> None:
    packed = gzip.compress(b"first") + b"between\x1f\x8b\x08junk" + gzip.compress(MAIL.encode())
    assert find_in_bytes(unpack(packed), [ErasedKey(1, MAIL)]) == {1}
    header = b"DATABLK*" + struct.pack(">ii", 20, 4000) + bytes(17)
    with pytest.raises(UnreadableError):
        unpack(b"HFile" + header + b"\x04\x22\x4d\x18 lz4")
    assert len(unpack(b"HFile" + header + gzip.compress(b"rows"))) == 2
    with pytest.raises(UnreadableError):
        unpack(b"#HUDI#....PAR1")


def test_log_that_no_decoder_knows_is_searched_as_bytes() -> None:
    keys = [ErasedKey(1, MAIL), ErasedKey(2, MAIL, "q")]
    assert find_in_log(b"#HUDI# damaged " + MAIL.encode(), keys, "p") == {1}
    assert find_in_log(b"", keys, "p") == set()


@pytest.mark.parametrize(
    ("place", "keepers", "words"),
    [
        (Place(1, ".hoodie/metadata/record_index/x.hfile", Trace.BYTES), Keepers(), "record_index of the metadata"),
        (Place(1, ".hoodie/.aux/lake_quarantine/7/files/p/x", Trace.ROW), Keepers(), "quarantined"),
        (Place(1, ".hoodie/.aux/lake_rows_differ.json", Trace.BYTES), Keepers(), "airflow lake doctor"),
        (Place(1, ".hoodie/timeline/history/1_2_0.parquet", Trace.BYTES), Keepers(), "own records"),
        (Place(1, FILE, Trace.ROW), Keepers({FILE[2:]: "20260101000000000"}), "savepoint 20260101000000000"),
        (Place(1, LOG, Trace.LOG), Keepers(pending=frozenset({"20260102000000000"})), "is pending"),
        (Place(1, FILE, Trace.ROW), Keepers(live={1: "20260101000000000"}), "not deleted"),
        (
            Place(1, LOG, Trace.LOG),
            Keepers(live={1: "20260102000000000"}, deletion="20260101120000000"),
            "20260102000000000 wrote the key again after deletion 20260101120000000",
        ),
        (Place(1, FILE, Trace.BYTES), Keepers(), "another value"),
        (Place(1, FILE, Trace.ROW), Keepers(held="20260101000000000"), "holds what was written"),
        (Place(1, FILE, Trace.ROW), Keepers(), "an older version"),
    ],
)
def test_place_is_explained_by_what_keeps_it(place: Place, keepers: Keepers, words: str) -> None:
    assert words in explain_place(place, keepers)


def receipt_of(places: list[Place], before: Receipt | None = None, unread: tuple[str, ...] = ()) -> Receipt:
    at = "2026-01-02T00:00:00+00:00" if before is None else "2026-01-03T00:00:00+00:00"
    searched = Receipt("/t", "id", "", at, 5, 100, () if before is None else before.keys, unread, ("sink s",))
    return write_receipt(searched, [(ErasedKey(1, MAIL), "h1", "d"), (ErasedKey(2, "b"), "h2", "")], places, Keepers())


def test_receipt_keeps_when_a_key_was_found_gone_first() -> None:
    first = receipt_of([Place(2, FILE, Trace.ROW)])
    assert [key.gone_at for key in first.keys] == ["2026-01-02T00:00:00+00:00", ""]
    assert first.gone == 1
    second = receipt_of([], first)
    assert [key.gone_at[:10] for key in second.keys] == ["2026-01-02", "2026-01-03"]
    back = receipt_of([Place(1, FILE, Trace.ROW)], second)
    assert back.keys[0].gone_at == ""


def test_file_that_cannot_be_read_leaves_no_key_gone() -> None:
    receipt = receipt_of([], unread=("p/x: too large",))
    assert receipt.gone == 0
    text = "\n".join(describe_receipt(receipt))
    assert "0 of 2 keys are in none of them" in text
    assert "p/x: too large" in text
    assert "elsewhere: sink s" in text
    assert MAIL not in json.dumps(text)


def test_partitions_of_files_and_known_ones() -> None:
    assert list_partitions([FILE, LOG, ".hoodie/metadata/files/x"], ("q",)) == ("p", "q")
    assert list_partitions([FILE[2:]], ()) == ("",)
