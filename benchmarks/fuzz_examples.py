"""Valid files, which the kinds of fuzz_kinds.py modify."""

from __future__ import annotations

import json

SETTINGS = """
target = "sim"
cache = "cache"
studies = "studies"

[limits]
jobs = 2
build_seconds = 30
build_memory_gb = 1.5
run_seconds = 2.5

[toolchains]
gcc = "/usr/bin/gcc"
clang = "tools/clang"
"""
TUNING = """
operator = "gemm"
dtype = "f32"
layout = "nt"
target = "sim"
seed = 3
strategy = "random"
keep_top = 4
out = "studies"
shapes = [{ M = 64, N = 128, K = 32 }, { MNK = 256, B = 2 }]

[knobs]
BLOCK_M = [32, 64]

[budget]
trials = 20
time = 9.5
"""
CLUSTER = """
head = "192.0.2.1"

[hosts.builder]
address = "192.0.2.10"
user = "me"
port = 2222
folder = "/home/me/deepgen"
python = "python3"

[hosts.gpus]
address = "192.0.2.11"
folder = "~/deepgen-test"
password = "secret"

[[groups]]
name = "a100"
target = "cuda:sm_80"
build_host = "builder"
measure_host = "gpus"
jobs = 16
devices = [0, 1]
space_strategy = 1
samples = 5
keep_top = 10
trials = 30
strategy = "random"
tasks = [{ config = "square.toml", results = "square" }, { config = "a.json", space = "b.json", results = "other" }]
"""
RESULT = {"correct": True, "acc": 1.2, "torchMs": 1.2, "kcgMs": 1.0}
OLDER = {"M_SIZE": 64, "N_SIZE": 64, "K_SIZE": 64, "BLOCK_SIZE_M": 32, "ORDER": [1, 0]}
RECORDED = {
    "device_name": "made up",
    "tune_params_keys": ["bx", "by", "pad"],
    "tune_params": {"bx": [1, 2, 4], "by": [1, 2], "pad": [0, None]},
    "cache": {
        f"{bx},{by},{pad}": {"bx": bx, "by": by, "pad": pad, "time": 1.5 / bx / by + (pad or 0.25), "times": [1.0, 2.0]}
        for bx in (1, 2, 4)
        for by in (1, 2)
        for pad in (0, None)
    }
    | {"9": {"bx": 4, "by": 9, "pad": 0, "time": "RuntimeFailedConfig"}},
}
HERON = """{"config": {
"method": "CGA", "max_trials": 20, "runner_repeat": 3, "in_dtype": "float16", "out_dtype": "float16",
"cases": {"A": ["gemm", [64, 64, 64]], "B": ["c2d", [1, 8, 8, 16, 16, 3, 3, 1, 1, 1]], "C": ["gemv", [8, 8]]}}}"""
_PRODUCT = """{"name": "gemm", "m": 64, "n": 64, "k": 64, "batch": 1, "a": "f32", "b": "f32", "c": "f32", "acc": "f32",
"layout": "nn", "alpha": 1.0, "beta": 0.0, "bias": false, "activation": "none", "scales": "none"}"""
WORK = f"""{{"format": "deepgen work 1", "target": "sim", "operators": [
{{"operator": {_PRODUCT}, "count": 2, "seconds": 0.1}}, {{"name": "aten::add", "count": 1, "seconds": 1.5}}]}}"""
RATES = {"format": "deepgen rates 1", "kinds": {"gemm": {"size": 1.0, "seconds": {"build": 1.0}}}}
ENTRY = {"sha256": "0", "kernel_id": "k", "binary": "../../b", "format": "so", "toolchain": "gcc", "facts": {}}
RECORDED |= {"operator": json.loads(_PRODUCT), "kernel_name": "sim_tiles"}
