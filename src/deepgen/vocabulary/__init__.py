"""The data types that every layer shares. One name per concept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepgen.vocabulary.registry import lazy

if TYPE_CHECKING:
    from deepgen.vocabulary.dtypes import DType, dtype
    from deepgen.vocabulary.errors import BadInput, DeepgenError, Missing
    from deepgen.vocabulary.json import Json, JsonObject, digest
    from deepgen.vocabulary.kernel import (
        Arg,
        Artifact,
        ConstantCopy,
        DescriptorArg,
        Kernel,
        LaunchPlan,
        ScalarArg,
        Size,
        Source,
        Step,
        TensorArg,
        TensorMapSpec,
        WorkspaceArg,
        completed,
    )
    from deepgen.vocabulary.measurement import Measurement, Trial, Verdict

# Imported on first use: programs that must start fast need few of them.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "deepgen.vocabulary.dtypes": "DType dtype",
        "deepgen.vocabulary.errors": "BadInput DeepgenError Missing",
        "deepgen.vocabulary.json": "Json JsonObject digest",
        "deepgen.vocabulary.kernel": "Arg Artifact ConstantCopy DescriptorArg Kernel LaunchPlan ScalarArg Size Source "
        "Step TensorArg TensorMapSpec WorkspaceArg completed",
        "deepgen.vocabulary.measurement": "Measurement Trial Verdict",
    },
)

__all__ = [
    "Arg",
    "Artifact",
    "BadInput",
    "ConstantCopy",
    "DType",
    "DeepgenError",
    "DescriptorArg",
    "Json",
    "JsonObject",
    "Kernel",
    "LaunchPlan",
    "Measurement",
    "Missing",
    "ScalarArg",
    "Size",
    "Source",
    "Step",
    "TensorArg",
    "TensorMapSpec",
    "Trial",
    "Verdict",
    "WorkspaceArg",
    "completed",
    "digest",
    "dtype",
]
