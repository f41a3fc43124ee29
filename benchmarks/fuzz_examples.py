"""Valid files, which the kinds of fuzz_kinds.py change."""

from __future__ import annotations

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
BM = [32, 64]

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
