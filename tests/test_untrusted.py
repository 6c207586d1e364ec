"""Checks of values read from files that anybody may have written."""

import json
import math

import pytest

from patchreorder.untrusted import clean, clean_lines, is_count, is_number, quoted


@pytest.mark.parametrize("value", [0, 7, 2**63 - 1])
def test_counts(value):
    assert is_count(value)


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, True, "1", None, [1]])
def test_other_values_are_no_counts(value):
    assert not is_count(value)


@pytest.mark.parametrize("value", [0, -3, 2.5, 9e99])
def test_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -1e100, True, "1", None])
def test_other_values_are_no_numbers(value):
    assert not is_number(value)


def test_clean_replaces_control_and_invisible_characters_at_any_depth():
    dirty = {"a\x1b[31m": ["b\u202ec", {"\u200b": "d\ud800"}], "n": 3, "plain": "naïve 日本"}
    assert clean(dirty) == {"a [31m": ["b c", {" ": "d "}], "n": 3, "plain": "naïve 日本"}


def test_clean_lines_keeps_line_breaks():
    assert clean_lines("a\x1b[31m\nb\r\tc\n") == "a [31m\nb  c\n"


@pytest.mark.parametrize(
    "name", ["a b,c.jpg", "it's 100 %.jpg", "naïve 日本.jpg", "back\\slash.jpg", "👨\u200d👩.jpg", 'a"b']
)
def test_ordinary_names_stay_as_they_are(name):
    assert quoted(name) == name


@pytest.mark.parametrize(
    "name", ["a\nb", "a\tb", "\x1b[31m", "\x9b31m", "\u202egnp.exe", "a\u2028b", "caf\udce9", '"a"', '"']
)
def test_other_names_are_json_strings_of_printable_characters(name):
    assert json.loads(quoted(name)) == name
    assert quoted(name).isascii()
    assert quoted(name).isprintable()
