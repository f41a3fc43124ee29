"""Small synthetic recordings for the search tests, with a valley, a cliff and configs that fail."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

KNOBS: dict[str, list[int]] = {
    "BLOCK": [16, 32, 48, 64, 96, 128, 192, 256],
    "TILE": [1, 2, 3, 4, 6, 8],
    "UNROLL": [0, 1, 2, 4],
    "PAD": [0, 1],
    "SHARED": [0, 1],
}


def made_up(best_block: float = 7.0, best_tile: float = 2.0) -> dict[str, Any]:
    """A recording in the hub's format. Another best block simulates another device: similar, but not the same."""
    cache = {}
    for values in product(*KNOBS.values()):
        config = dict(zip(KNOBS, values, strict=True))
        if config["BLOCK"] * config["TILE"] > 1024:
            continue
        cache[",".join(map(str, values))] = {**config, "time": _time(config, best_block, best_tile)}
    return {"tune_params_keys": list(KNOBS), "tune_params": KNOBS, "cache": cache}


def _time(config: dict[str, int], best_block: float, best_tile: float) -> float | str:
    if config["SHARED"] and config["BLOCK"] * config["TILE"] > 600:
        return "RuntimeFailedConfig"
    slow = 1.0 + 0.15 * (math.log2(config["BLOCK"]) - best_block) ** 2
    slow += 0.2 * (math.log2(config["TILE"]) - best_tile) ** 2
    slow += 0.6 if config["BLOCK"] % 32 else 0.0
    slow += 0.3 * config["PAD"] * (1 - config["SHARED"]) + 0.4 * (1 - config["SHARED"])
    return slow + 0.05 * abs(config["UNROLL"] - 2)


def write(folder: Path, name: str = "made_up.json", **shape: float) -> Path:
    path = folder / name
    path.write_text(json.dumps(made_up(**shape)), encoding="utf-8")
    return path
