"""The older tool's files and the hub's, with their known counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepgen.frontends.formats import Document, space_of
from deepgen.space import Space
from deepgen.vocabulary import BadInput, foreign
from deepgen_formats.older.files import full_config, own_config, points_space, to_space_file, tuning_space

DATA = Path(__file__).parent.parent.parent / "data"
CONFIGS = DATA / "deepgen" / "TuningConfigs"

LEGAL = {
    "GEMM_cfg_32": (1_451_188_224, 1_744),
    "GEMM_configs_64": (663_676_747_776, 4_032),
    "GEMM_configs_128": (663_676_747_776, 58_440),
    "GEMM_configs_256": (663_676_747_776, 374_208),
    "GEMM_configs_512": (663_676_747_776, 1_225_392),
    "GEMM_configs_1024": (835_884_417_024, 9_583_920),
    "GEMM_configs_2048": (8_599_633_920_000, 29_913_408),
    "GEMM_configs_4096": (7_166_361_600, 331_056),
    "GEMM_configs_2": (2_304, 18),
    "GEMM_configs_3": (2_304, 18),
    "GEMM_configs_2_e2e": (573_308_928, 89_856),
    "e2e_improv": (3_265_173_504, 372_600),
    "imp": (23_887_872, 37_584),
    "test": (214_990_848, 45_360),
    "GEMM_single_test": (1, 0),
}
RECORDED = {
    "convolution": (10_240, 4_362),
    "dedispersion": (22_272, 11_130),
    "gemm": (663_552, 116_928),
    "hotspot": (4_440_000, 82_984),
}


def read_space(text: str, name: str) -> Space:
    return space_of(Document(Path(name), foreign.parse(text, name), name))


def load(name: str) -> Any:
    return json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LEGAL)
def test_tuning_configs_have_the_older_tools_counts(name: str) -> None:
    space = tuning_space(load(name), 1, name)
    assert (space.product_size(), space.count()) == LEGAL[name]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_kernels_have_their_counts(name: str) -> None:
    space = read_space((DATA / "recorded" / f"{name}.T1.json").read_text(encoding="utf-8"), name)
    assert (space.product_size(), space.count()) == RECORDED[name]


def test_sampled_configs_of_the_older_tool_follow_its_rules() -> None:
    space = tuning_space(load("GEMM_configs_1024"), 1)
    for config in space.sample(300, seed=3):
        c = {k: int(v) for k, v in full_config(config).items()}
        ty, tx = c["BLOCK_SIZE_M"] // c["THREAD_SIZE_M"], c["BLOCK_SIZE_N"] // c["THREAD_SIZE_N"]
        threads = ty * tx * c["LOCAL_SPLIT_U"]
        assert threads <= 256
        assert ty == c["BLOCK_LAYOUT_M"] * c["WARP_LAYOUT_M"]
        assert tx == c["BLOCK_LAYOUT_N"] * c["WARP_LAYOUT_N"]
        assert (c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_K"] // threads) % c["GLOB_LOAD_WIDTH_A"] == 0
        assert (c["GLOB_STORE_WIDTH"] == 0) == (c["LOCAL_SPLIT_U"] == 1)
        assert own_config(c) == config


def test_the_older_space_file_holds_the_points_of_its_template() -> None:
    data = json.loads((DATA / "deepgen" / "TuningCombs" / "ts_1.json").read_text(encoding="utf-8"))
    listed = points_space(data)
    pruned = tuning_space(data["template"], 1)
    assert listed.count() == len(data["cfgs"]) == 18
    assert all(config in pruned for config in listed)
    written = to_space_file(data["template"], listed)
    assert sorted(written["cfgs"]) == sorted(data["cfgs"])  # type: ignore[arg-type,type-var]
    assert points_space(written).count() == 18


def test_a_space_file_cannot_hold_more_than_ten_candidates() -> None:
    template = {**load("GEMM_configs_2"), "BLOCK_SIZE_K": list(range(1, 12))}
    with pytest.raises(BadInput, match=r"BLOCK_SIZE_K.*11 candidates"):
        to_space_file(template, [])


def test_strategy_0_filters_by_divisibility() -> None:
    data = load("GEMM_configs_2")
    space = tuning_space(data, 0)
    assert space.count() > 0
    for config in space.sample(50, seed=0):
        covered = config["BLOCK_LAYOUT_M"] * config["WARP_LAYOUT_M"] * config["THREAD_SIZE_M"]  # type: ignore[operator]
        assert covered == config["BLOCK_SIZE_M"]
        assert config["M_SIZE"] % config["BLOCK_SIZE_M"] == 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"BLOCK_SIZE_M": []}, "BLOCK_SIZE_M"),
        ({"BLOCK_SIZE_M": ["a"]}, "whole numbers"),
        ({"BLOCK_SIZE_M": [4, 4]}, "twice"),
        ({"DATATYPE_A": [5]}, "dtype code 5"),
        ({"BLOK": [1]}, "unknown key 'BLOK'"),
    ],
)
def test_a_wrong_tuning_config_is_told_by_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tuning_space({**load("GEMM_configs_2"), **change})


def test_a_missing_key_is_named() -> None:
    data = load("GEMM_configs_2")
    del data["WARP_SIZE"]
    with pytest.raises(BadInput, match=r"file.json.*WARP_SIZE"):
        tuning_space(data, 1, "file.json")


def test_files_of_other_kinds_are_refused_in_a_sentence() -> None:
    for text in ("[1, 2]", '{"a": 1}', "not json", '{"format": "deepgen.space/9"}'):
        with pytest.raises(BadInput, match=r"some\.json"):
            read_space(text, "some.json")


def test_a_changed_space_file_is_noticed() -> None:
    space = Space("s")
    x = space.knob("x", [1, 2, 3])
    space.require(x < 3, "small")
    data = space.to_json()
    assert read_space(json.dumps(data), "s.json").count() == 2
    data["knobs"][0]["values"] = [1, 2]  # type: ignore[index,call-overload]
    with pytest.raises(BadInput, match="fingerprint"):
        read_space(json.dumps(data), "s.json")


def test_conditions_of_a_hub_file_are_never_executed() -> None:
    data = json.loads((DATA / "recorded" / "gemm.T1.json").read_text(encoding="utf-8"))
    data["ConfigurationSpace"]["Conditions"].append({"Expression": "__import__('os').system('true') == 0"})
    with pytest.raises(BadInput, match="not allowed"):
        read_space(json.dumps(data), "gemm.T1.json")
