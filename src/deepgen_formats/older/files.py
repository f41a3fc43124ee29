"""Legacy tuning configs and space files, and the two rules that convert them to spaces.

A tuning config maps each key to its candidates. A space file contains a tuning config and, for each point, one decimal
number with a digit for each key: the index of the candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deepgen.extend import (
    BadInput,
    Config,
    Expr,
    JsonObject,
    Requirement,
    Space,
    Value,
    all_of,
    divides,
    maximum,
    points,
    table,
    where,
)

KEYS = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "THREAD_SIZE_M",
    "THREAD_SIZE_N",
    "WARP_SIZE",
    "BLOCK_LAYOUT_M",
    "BLOCK_LAYOUT_N",
    "WARP_LAYOUT_M",
    "WARP_LAYOUT_N",
    "DATATYPE_A",
    "DATATYPE_B",
    "DATATYPE_C",
    "M_SIZE",
    "N_SIZE",
    "K_SIZE",
    "BATCH_SIZE",
    "IS_ATRANS",
    "GLOB_LOAD_WIDTH_A",
    "GLOB_LOAD_WIDTH_B",
    "WARP_SCATTER_WIDTH_A",
    "WARP_SCATTER_WIDTH_B",
    "THREAD_SCATTER_WIDTH_A",
    "THREAD_SCATTER_WIDTH_B",
    "LOCAL_SPLIT_U",
    "BLOCK_MAPPING",
    "GLOB_STORE_WIDTH",
    "UNROLL_NUM",
    "REG_PREFETCH",
    "SHARED_PREFETCH",
    "LOAD_CONTINUOUS",
    "REDUCE_C_CONTINUOUS",
)
DTYPE_CODES = {1: "f8", 2: "f16", 4: "f32", 8: "f64", 31: "i8", 32: "i16", 34: "i32", 38: "i64", 62: "bf16"}
_PROBLEM = ("M_SIZE", "N_SIZE", "K_SIZE", "BATCH_SIZE", "IS_ATRANS", "DATATYPE_A", "DATATYPE_B", "DATATYPE_C")
_ONLY_WHEN_SPLIT = ("GLOB_STORE_WIDTH", "REDUCE_C_CONTINUOUS")
_BYTES = {1: 1, 2: 2, 4: 4, 8: 8, 31: 1, 32: 2, 34: 4, 38: 8, 62: 2}
_MOST_CANDIDATES = 10


def is_space_file(data: object) -> bool:
    return isinstance(data, Mapping) and "template" in data and "cfgs" in data


def check_tuning_config(data: Mapping[str, Any], where_: str) -> dict[str, list[int]]:
    """The candidates of every key, checked; optional keys are filled in."""
    unknown = [k for k in data if k not in KEYS]
    if unknown:
        what = "unknown key " if len(unknown) == 1 else "unknown keys "
        raise BadInput(what + ", ".join(map(repr, unknown)), where=where_, allowed="keys: " + ", ".join(KEYS))
    missing = [k for k in KEYS if k not in data and k != "BATCH_SIZE"]
    if missing:
        raise BadInput(f"key {missing[0]!r} is missing", where=where_, allowed="a list of candidates")
    for key, candidates in data.items():
        fits = isinstance(candidates, list) and candidates and all(type(c) is int and c >= 0 for c in candidates)
        if not fits:
            raise BadInput(
                f"key {key!r} is {candidates!r}", where=where_, allowed="a list of whole numbers, such as [1, 2]"
            )
        if len(set(candidates)) < len(candidates):
            raise BadInput(f"key {key!r} has a candidate twice: {candidates!r}", where=where_)
    for key in ("DATATYPE_A", "DATATYPE_B", "DATATYPE_C"):
        odd = [c for c in data[key] if c not in DTYPE_CODES]
        if odd:
            codes = ", ".join(f"{c} {n}" for c, n in DTYPE_CODES.items())
            raise BadInput(f"key {key!r} has the unknown dtype code {odd[0]}", where=where_, allowed=codes)
    return {**data, "BATCH_SIZE": data.get("BATCH_SIZE", [1])}


def tuning_space(data: Mapping[str, Any], strategy: int = 1, name: str = "tuning config") -> Space:
    """The space of a tuning config by strategy 0 (the filtered product) or 1 (the pruned one)."""
    if strategy not in (0, 1):
        raise BadInput(f"unknown space strategy {strategy}", where=name, allowed="0 or 1")
    candidates = check_tuning_config(data, name)
    space = Space(name)
    split = Expr("knob", (), "LOCAL_SPLIT_U") > 1
    knob = {
        key: space.knob(key, candidates[key], split if strategy == 1 and key in _ONLY_WHEN_SPLIT else None)
        for key in _conditions_last(candidates)
    }
    for key in _PROBLEM:
        if len(candidates[key]) > 1:
            space.require(knob[key] == candidates[key][0], f"a space has one problem: the first {key}")
    (_pruned if strategy == 1 else _filtered)(space, knob)
    return space


def _pruned(space: Space, knob: Mapping[str, Expr]) -> None:
    bm, bn, bk = (knob[f"BLOCK_SIZE_{x}"] for x in "MNK")
    tm, tn = knob["THREAD_SIZE_M"], knob["THREAD_SIZE_N"]
    split = knob["LOCAL_SPLIT_U"]
    space.require(_ratio(tm, tn) & _ratio(bm, bn), "tiles are as high as wide or higher, less than three times")
    ty, tx = space.derive("threads_m", bm // tm), space.derive("threads_n", bn // tn)
    threads = space.derive("threads", ty * tx * split)
    space.require(threads <= 256, "a block has at most 256 threads")
    space.require(knob["WARP_LAYOUT_M"] * knob["WARP_LAYOUT_N"] == knob["WARP_SIZE"], "the lanes fill a warp")
    for side, along in (("M", ty), ("N", tx)):
        lanes, warps = knob[f"WARP_LAYOUT_{side}"], knob[f"BLOCK_LAYOUT_{side}"]
        demand = (along % lanes == 0) & (along // lanes >= 1) & (along // lanes == warps)
        space.require(demand, f"warps cover the threads along {side}")
    for side, rows, tile in (("A", bm, tm), ("B", bn, tn)):
        width, each = knob[f"GLOB_LOAD_WIDTH_{side}"], rows * bk // threads
        space.require((width <= each) & divides(width, each), f"loads of {side} divide a thread's share")
        warp, thread = knob[f"WARP_SCATTER_WIDTH_{side}"], knob[f"THREAD_SCATTER_WIDTH_{side}"]
        space.require((thread <= warp) & (warp <= tile), f"scatter widths of {side} fit the thread's tile")
    tiles = (bm + bn) * bk * where(knob["SHARED_PREFETCH"] != 0, 2, 1)
    shared = space.derive("shared_elements", where(split > 1, maximum(tiles, split * bm * bn), tiles))
    space.require(shared <= 65536, "tiles fit in shared memory")
    # The legacy tool compares TM * BN where TM * TN was meant; its spaces are reproduced unchanged.
    registers = space.derive("register_elements", tm * bn * where(knob["REG_PREFETCH"] != 0, 2, 1))
    space.require(registers <= 1024, "tiles fit in registers")
    store, stored = knob["GLOB_STORE_WIDTH"], bm * bn // threads
    space.require((store <= stored) & divides(store, stored), "stores divide a thread's share of the result")
    space.require(knob["M_SIZE"] // bm >= knob["BLOCK_MAPPING"], "there are enough blocks for the swizzle")


def _ratio(a: Expr, b: Expr) -> Expr:
    return all_of(a // b > 0, a // b <= 2)


def _filtered(space: Space, knob: Mapping[str, Expr]) -> None:
    bm, bn, bk = (knob[f"BLOCK_SIZE_{x}"] for x in "MNK")
    size_a = table(knob["DATATYPE_A"], _BYTES)
    shared = space.derive("shared_bytes", (bm + bn) * bk * size_a)
    space.require(shared < 16384, "tiles fit in shared memory")
    for axis, block in (("M", bm), ("N", bn), ("K", bk)):
        space.require(divides(block, knob[f"{axis}_SIZE"]), f"blocks divide {axis}")
    for side, block in (("M", bm), ("N", bn)):
        covered = knob[f"BLOCK_LAYOUT_{side}"] * knob[f"WARP_LAYOUT_{side}"] * knob[f"THREAD_SIZE_{side}"]
        space.require(covered == block, f"layouts times tiles give the block along {side}")
    space.require(knob["WARP_LAYOUT_M"] * knob["WARP_LAYOUT_N"] == knob["WARP_SIZE"], "the lanes fill a warp")
    threads = space.derive(
        "threads",
        knob["BLOCK_LAYOUT_M"] * knob["BLOCK_LAYOUT_N"] * knob["WARP_SIZE"],
    )
    for side, rows, tile in (("A", bm, knob["THREAD_SIZE_M"]), ("B", bn, knob["THREAD_SIZE_N"])):
        warp, thread = knob[f"WARP_SCATTER_WIDTH_{side}"], knob[f"THREAD_SCATTER_WIDTH_{side}"]
        space.require(divides(warp, tile) & divides(thread, warp), f"scatter widths of {side} divide the tile")
        width = knob[f"GLOB_LOAD_WIDTH_{side}"]
        space.require(divides(width * threads, rows * bk), f"loads of {side} divide a thread's share")


# Space files ----------------------------------------------------------------------------------------------------


def points_space(data: Mapping[str, Any], name: str = "space file") -> Space:
    """The space of a space file: the template's knobs, and only the points that it lists."""
    template, codes = data["template"], data["cfgs"]
    if not isinstance(template, Mapping) or not isinstance(codes, list):
        raise BadInput("not a space file", where=name, allowed='{"template": a tuning config, "cfgs": [numbers]}')
    candidates = check_tuning_config(template, name)
    space = Space(name)
    split = Expr("knob", (), "LOCAL_SPLIT_U") > 1
    for key in _conditions_last(candidates):
        space.knob(key, candidates[key], split if key in _ONLY_WHEN_SPLIT else None)
    names = [k.name for k in space.knobs]
    rows = [tuple(config.get(n) for n in names) for config in (_decode(code, template, name) for code in codes)]
    space.add(Requirement("is one of the file's points", points(names, dict.fromkeys(rows))))
    return space


def to_space_file(template: Mapping[str, Any], configs: Iterable[Mapping[str, Value]]) -> JsonObject:
    """Points in the legacy tool's format. A key with more than ten candidates does not fit in its digits."""
    long = [key for key, candidates in template.items() if len(candidates) > _MOST_CANDIDATES]
    if long:
        raise BadInput(
            f"key {long[0]!r} has {len(template[long[0]])} candidates, but a legacy space file has one digit per key",
            allowed="save the space in deepgen's own format instead",
        )
    return {"template": dict(template), "cfgs": [_encode(config, template) for config in configs]}


def full_config(config: Mapping[str, Value]) -> Config:
    """A config in the legacy tool's form: with zeros for keys that do not apply."""
    return {**config, **{key: config.get(key, 0) for key in _ONLY_WHEN_SPLIT}}


def own_config(config: Mapping[str, Value]) -> Config:
    """A config of the legacy tool as a point of our space: without keys that do not apply."""
    unsplit = config["LOCAL_SPLIT_U"] == 1
    return {key: value for key, value in config.items() if not (unsplit and key in _ONLY_WHEN_SPLIT)}


def _encode(config: Mapping[str, Value], template: Mapping[str, Any]) -> int:
    digits = [candidates.index(config[key]) if key in config else 0 for key, candidates in template.items()]
    return int("".join(map(str, digits)))


def _decode(code: Any, template: Mapping[str, Any], where_: str) -> Config:
    digits = str(code).zfill(len(template)) if type(code) is int and code >= 0 else ""
    if len(digits) != len(template):
        raise BadInput(
            f"point {code!r} does not match its template", where=where_, allowed=f"up to {len(template)} digits"
        )
    config: Config = {"BATCH_SIZE": 1}
    for (key, candidates), digit in zip(template.items(), digits, strict=True):
        if int(digit) >= len(candidates):
            raise BadInput(f"point {code}: key {key!r} has no candidate number {digit}", where=where_)
        config[key] = candidates[int(digit)]
    return own_config(config)


def _conditions_last(candidates: Iterable[str]) -> list[str]:
    """The keys in order, but those with a condition on LOCAL_SPLIT_U after it."""
    return sorted(candidates, key=lambda key: key in _ONLY_WHEN_SPLIT)
