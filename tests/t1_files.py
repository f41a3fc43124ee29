"""A small T1 file with its C kernel, which tests modify."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCALE: dict[str, Any] = {
    "General": {"BenchmarkName": "scale"},
    "ConfigurationSpace": {
        "TuningParameters": [{"Name": "UNROLL", "Type": "int", "Values": "[1, 2, 4, 8]", "Default": 2}],
        "Conditions": [{"Expression": "UNROLL <= 4", "Parameters": ["UNROLL"]}],
    },
    "Budget": [{"Type": "ConfigurationCount", "BudgetValue": 3}],
    "KernelSpecification": {
        "Language": "C",
        "KernelName": "scale",
        "KernelFile": "scale.c",
        "ProblemSize": [4096],
        "LocalSize": {"X": "1"},
        "GlobalSize": {"X": "1"},
        "Arguments": [
            {"Name": "y", "Type": "float", "MemoryType": "Vector", "AccessType": "WriteOnly", "Size": "ProblemSize[0]"},
            {
                "Name": "x",
                "Type": "float",
                "MemoryType": "Vector",
                "AccessType": "ReadOnly",
                "FillType": "Random",
                "FillValue": 2.0,
                "Size": "max(UNROLL) * 512",
            },
            {"Name": "factor", "Type": "float", "MemoryType": "Scalar", "FillValue": 0.5},
            {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 4096},
        ],
    },
}
SOURCE = """
void scale(float* y, const float* x, float factor, int n) {
    for (int i = 0; i < n; i += UNROLL)
        for (int j = 0; j < UNROLL; j++) y[i + j] = factor * x[i + j];
}
"""


def written(folder: Path, change: Callable[[dict[str, Any]], object] = lambda data: None, source: str = SOURCE) -> Path:
    data = copy.deepcopy(SCALE)
    change(data)
    (folder / "scale.c").write_text(source)
    (folder / "scale.json").write_text(json.dumps(data))
    return folder / "scale.json"
