"""Counts about rows are summed over their windows and reported once, in words."""

from __future__ import annotations

from bertkit.tasks.counts import Count, lines_of, summed


def test_counts_of_one_kind_are_summed() -> None:
    counts = [Count(2, "{} longer than 8 truncated"), Count(1, "{} shortened", "word"), Count(0, "{} without text")]
    assert lines_of(counts) == ["2 longer than 8 truncated", "1 word shortened"]
    assert lines_of(counts * 2) == ["4 longer than 8 truncated", "2 words shortened"]
    assert [count.number for count in summed(counts * 3)] == [6, 3, 0]


def test_a_number_may_be_worth_telling_only_beyond_another() -> None:
    whole, cut = Count(5, "split into windows: {} features", beyond=5), Count(7, "split into windows: {} features", beyond=4)
    assert lines_of([whole]) == []
    assert lines_of([whole, cut, whole]) == ["split into windows: 17 features"]


def test_braces_in_a_place_are_no_place_for_the_number() -> None:
    assert lines_of([Count(3, "{} left out (a{}.csv:1)")]) == ["3 left out (a{}.csv:1)"]
