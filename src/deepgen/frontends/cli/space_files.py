"""Any file that describes a space, by its content: our own, the older tool's two, and the hub's."""

from __future__ import annotations

from typing import Any

from deepgen.space import Space
from deepgen.space.definition import FORMAT
from deepgen.vocabulary import BadInput, foreign
from deepgen_formats.older import files as older
from deepgen_formats.t1 import space as t1


def read_space(text: bytes | str, name: str, strategy: int = 1) -> Space:
    """The space that the text of a file describes; `strategy` says how a tuning config becomes one."""
    data: Any = foreign.parse(text, name)
    if isinstance(data, dict) and str(data.get("format", "")).startswith("deepgen.space/"):
        try:
            return Space.from_json(data)
        except BadInput as error:
            raise BadInput(str(error), where=name) from error
    if t1.is_t1(data):
        return t1.t1_space(data, name)
    if older.is_space_file(data):
        return older.points_space(data, name)
    if older.is_tuning_config(data):
        return older.tuning_space(data, strategy, name)
    raise BadInput(
        "this file describes no space",
        where=name,
        allowed=f"a space file ({FORMAT}), a T1 file (ConfigurationSpace), a tuning config (BLOCK_SIZE_M, ...) "
        "or an older space file (template and cfgs)",
    )
