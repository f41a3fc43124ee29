"""The data types that every layer shares. One name per concept."""

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
