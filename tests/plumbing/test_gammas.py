"""A table of γ by batch size says one thing for every number of sessions, or is refused with what to write."""

from __future__ import annotations

import pytest

from pilotfish.gammas import GammaTable


@pytest.mark.parametrize(
    ("text", "gammas"),
    [
        ("4", {0: 4, 1: 4, 1000: 4}),
        ("0", {0: 0, 1: 0}),
        (" 1:8, 4:4,16:2 ,64:0 ", {0: 8, 1: 8, 3: 8, 4: 4, 15: 4, 16: 2, 63: 2, 64: 0, 9999: 0}),
    ],
)
def test_a_row_counts_from_its_sessions_on(text: str, gammas: dict[int, int]) -> None:
    """Each row holds until the next one begins, and the table is written as it is read."""
    table = GammaTable.parse(text)
    assert {num: table.gamma(num) for num in gammas} == gammas
    assert GammaTable.parse(str(table)) == table
    assert table.most == max(gammas.values())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "'' is no row; write a number"),
        ("four", "'four' is no row; .*1:8,4:4"),
        ("-1", "'-1' is no row"),
        ("1:8,4", "'4' is no row"),
        ("1:8,4:x", "'4:x' is no row"),
        ("2:8", "from 2 sessions on; it must be from 1 on"),
        ("1:8,4:4,4:2", "4 sessions come after 4"),
        ("1:8,16:2,4:4", "4 sessions come after 16"),
        ("1:8,4:1025", "γ of 1025 is over 1024"),
        ("4096", "γ of 4096 is over 1024"),
    ],
)
def test_what_is_no_table_is_refused(text: str, match: str) -> None:
    """A row that is none, rows out of order and a γ that cannot be are named with what to write."""
    with pytest.raises(ValueError, match=match):
        GammaTable.parse(text)
