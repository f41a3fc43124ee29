"""Runs on a host with deepgen's code: which toolchains it would build with, and which devices it has."""

from __future__ import annotations

import json
import sys
from typing import Any

from deepgen.extend import DeepgenError, targets, toolchain_for


def probe(build: list[str], measure: list[str]) -> dict[str, Any]:
    """For each target, what is available or what is wrong."""
    return {"build": {name: _toolchain(name) for name in build}, "measure": {name: _device(name) for name in measure}}


def _toolchain(name: str) -> dict[str, Any]:
    try:
        target = targets.resolve(name)
        return {"ok": toolchain_for(target, target.languages[0]).id}
    except DeepgenError as error:
        return {"problem": str(error)}


def _device(name: str) -> dict[str, Any]:
    try:
        target = targets.resolve(name)
        targets.device_for(target)
    except DeepgenError as error:
        return {"problem": str(error)}
    return {"ok": target.to_json()}


if __name__ == "__main__":
    print(json.dumps(probe(*json.loads(sys.argv[1]))))
