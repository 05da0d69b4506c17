"""Which folders are read for a table inside another one's folder, and which are left out."""

from __future__ import annotations

from lake_jobs.services.inner_table_rules import MAX_FOLDERS, Folder, find_inner_table, rare_first

Tree = dict[str, Folder]


def find(tree: Tree) -> tuple[str, list[str]]:
    """Return what was found in a tree, its folders by their paths, and which folders were read."""
    asked: list[str] = []

    def list_folders(folder: str) -> list[str]:
        begin = f"{folder}/" if folder else ""
        below = (path.removeprefix(begin) for path in tree if path.startswith(begin))
        return [name for name in below if name and "/" not in name]

    def kind_of(folder: str) -> Folder:
        asked.append(folder)
        return tree[folder]

    return find_inner_table(list_folders, kind_of), asked


def partitions(*names: str) -> Tree:
    return dict.fromkeys(names, Folder.PARTITION)


def test_finds_none_among_partitions() -> None:
    found, asked = find({**partitions("2024/01", "2024/02", "2025/01"), "2024": Folder.OTHER, "2025": Folder.OTHER})
    assert found == ""
    assert len(asked) == 5


def test_finds_a_table_at_any_depth() -> None:
    tree = {**partitions("Aachen"), "a": Folder.OTHER, "a/b": Folder.OTHER, "a/b/orders": Folder.TABLE}
    assert find(tree)[0] == "a/b/orders"


def test_does_not_read_what_is_in_partitions() -> None:
    """Hudi's listing ends there, so nothing takes what lies below for the table's."""
    found, asked = find({**partitions("Aachen"), "Aachen/orders": Folder.TABLE})
    assert (found, asked) == ("", ["Aachen"])


def test_reads_a_bounded_number_of_folders_and_at_odd_names_first() -> None:
    days = partitions(*(f"day=2024-{i:05}" for i in range(2 * MAX_FOLDERS)))
    found, asked = find({**days, "old": Folder.TABLE})
    assert found == "old"
    assert len(asked) == MAX_FOLDERS
    assert find(days)[0] == ""


def test_names_of_one_form_come_last() -> None:
    assert rare_first(["2024-01-01", "2024-01-02", "old"])[0] == "old"
    assert rare_first(["city=a", "city=b", "2024", "2025", "2026", "x"]) == [
        "x",
        "city=a",
        "city=b",
        "2024",
        "2025",
        "2026",
    ]
