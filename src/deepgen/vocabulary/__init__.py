"""The words that every layer shares. One word a thing."""

from deepgen.vocabulary.dtypes import DType, dtype
from deepgen.vocabulary.errors import BadInput, DeepgenError, Missing
from deepgen.vocabulary.json import Json, JsonObject, digest
from deepgen.vocabulary.kernel import (
    Arg,
    Artifact,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Size,
    Source,
    Step,
    TensorArg,
    TensorMapArg,
    WorkspaceArg,
)
from deepgen.vocabulary.measurement import Measurement, Verdict
from deepgen.vocabulary.trial import Trial

__all__ = [
    "Arg",
    "Artifact",
    "BadInput",
    "DType",
    "DeepgenError",
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
    "TensorMapArg",
    "Trial",
    "Verdict",
    "WorkspaceArg",
    "digest",
    "dtype",
]
