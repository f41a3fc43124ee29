"""JSON from outside: our own files' content is accepted, and harmful content is refused before it costs anything."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen.vocabulary import BadInput, foreign

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_every_json_value_comes_through(value: object, escaped: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=escaped).encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair, which is not text
    assert foreign.parse(text, "here") == value


HARMFUL = {
    "infinity": ('{"a": Infinity}', "Infinity is not a JSON number"),
    "not a number": ("[NaN]", "NaN is not a JSON number"),
    "beyond floats": ("[1e999]", "too large for a float"),
    "a key twice": ('{"a": 1, "a": 2}', "'a' appears twice"),
    "deep lists": ("[" * 200 + "]" * 200, "nested too deeply"),
    "lists deeper than any stack": ("[" * 1_000_000, "nested too deeply"),
    "deep objects": ('{"a":' * 70 + "1" + "}" * 70, "nested too deeply"),
    "many digits": ("1" * 5000, "5000 digits"),
    "half a character": ('["\\ud800"]', "surrogates not allowed"),
    "too many values": ("[" + "[]," * (foreign.MOST_VALUES // 2) + "[]]", "too many values"),
    "no text": (b"\xff\xfe[\x00]\x00", "is not JSON"),
    "a quote that never ends": ('["' + '\\"' * 1_000_000, "is not JSON"),
    "nothing": ("", "is not JSON"),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_harmful_text_is_refused_in_a_sentence(what: str) -> None:
    text, says = HARMFUL[what]
    with pytest.raises(BadInput, match=says) as refused:
        foreign.parse(text, "their.json")
    assert str(refused.value).startswith("their.json: ") and len(str(refused.value)) < 300


def test_brackets_in_strings_are_no_depth() -> None:
    assert foreign.parse(json.dumps(["[" * 500 + '"\\"' + "{" * 500]), "here") == ["[" * 500 + '"\\"' + "{" * 500]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps("x" * 5000))
    assert foreign.read_json(path) == "x" * 5000
    with pytest.raises(BadInput, match=r"too large.*at most 4 KiB"):
        foreign.read_json(path, most=4096)
    with pytest.raises(BadInput, match="too large"):
        foreign.read_bytes(Path("/dev/zero"), most=1 << 20)
    for name in ("none.json", "a\0b"):
        with pytest.raises(BadInput, match="cannot be read"):
            foreign.read_bytes(tmp_path / name)


def test_packed_text_is_unpacked_up_to_its_limit() -> None:
    assert foreign.unpacked(gzip.compress(b"[1]"), "here") == b"[1]"
    bomb = gzip.compress(bytes(64 << 20))
    with pytest.raises(BadInput, match="too large"):
        foreign.unpacked(bomb, "here")
    for damaged in (bomb[:-9], b"\x1f\x8b\x08 no gzip at all"):
        with pytest.raises(BadInput, match=r"damaged|too large"):
            foreign.unpacked(damaged, "here")


def test_the_limits_hold_for_all_lines_together() -> None:
    line = b"[" + b"[]," * (foreign.MOST_VALUES // 8) + b"[]]"
    assert len(foreign.parse_lines(b"[1]\n[2]", "here")) == 2
    with pytest.raises(BadInput, match="too many values"):
        foreign.parse_lines(b"\n".join([line] * 3), "here")
    with pytest.raises(BadInput, match="at most 10"):
        foreign.parse(line, "here", values=10)
