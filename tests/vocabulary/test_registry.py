"""Names are found without importing their modules, and a broken plug-in only costs a message."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from deepgen.vocabulary import BadInput, DeepgenError, registry
from deepgen.vocabulary.registry import Registry

OWN = {"ordered": "collections:OrderedDict"}


def plugged(monkeypatch: pytest.MonkeyPatch, **places: str) -> Registry[Any]:
    entries = {name: metadata.EntryPoint(name, place, "deepgen.tests") for name, place in places.items()}
    monkeypatch.setattr(registry, "_entry_points", lambda group: entries)
    return Registry("deepgen.tests", "thing", OWN)


def test_own_names_come_first_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    things = plugged(monkeypatch, counter="collections:Counter", ordered="no_such_module:Nothing")
    assert things.names() == ("ordered", "counter")
    assert things.get("ordered").__name__ == "OrderedDict"
    assert things.get("counter").__name__ == "Counter"
    assert [b.why for b in things.broken()] == ["'ordered' is also a built-in name, which takes precedence"]


def test_listing_names_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    things = plugged(monkeypatch, lost="no_such_module:Nothing")
    assert "lost" in things and "other" not in things
    assert things.names() == ("ordered", "lost")


def test_a_broken_plug_in_is_left_out_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    things = plugged(monkeypatch, lost="no_such_module:Nothing")
    assert len(things.working()) == 1
    [broken] = things.broken()
    assert broken.name == "lost" and "no_such_module" in broken.why
    with pytest.raises(DeepgenError, match=r"thing 'lost' of package .* cannot be loaded: ModuleNotFoundError"):
        things.get("lost")


def test_an_unknown_name_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"unknown thing 'x' \(one of ordered\)"):
        plugged(monkeypatch).get("x")
