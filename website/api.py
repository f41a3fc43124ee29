"""The reference of the Python API: signatures and docstrings of what users and plug-ins import."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

FOLDER = "reference/api"
# Pages in this order, grouped by purpose; each lists names of `deepgen`.
GROUPS = {
    "Tuning": "tune judge Study Progress LocalEngine library NotServed Trial Measurement Verdict",
    "Operators": "gemm Gemm conv2d Conv2d softmax Softmax attention Attention attention_backward AttentionBackward "
    "grouped_gemm GroupedGemm gemm_w4 GemmW4 pack_w4 operator",
    "Own kernels": "kernel input output inout scalar workspace constant texture launch autotune",
    "Expressions": "tensor compute expression reduce_axis sum prod max min scan where text packed_layout "
    "abs cos erf exp floor log maximum minimum rsqrt sigmoid sin sqrt tanh",
    "Spaces": "Space",
    "Errors": "DeepgenError BadInput",
}
MODULES = {
    "deepgen.torch": "record use patch traced linear mm bmm matmul addmm",
    "deepgen.settings": "Settings load read",
    "deepgen.extend": "Operator Signature Param Tensor Work Tolerance Answer Word Generator Rank Kernel Source "
    "LaunchPlan Step TensorArg ScalarArg WorkspaceArg Target Kind Cpu Gpu Toolchain Built BuildError Runner Task "
    "RunnerOptions Baseline Strategy Setting Rule Engine FileFormat install_extra",
}
INTRODUCTIONS = {
    "deepgen.torch": "[Whole models](../../torch.md) shows how these are used.",
    "deepgen.settings": "[Settings](../../settings.md) lists the keys of `deepgen.toml`.",
    "deepgen.extend": "What a plug-in is written with. [Extend](../../plug-ins.md) says where each belongs.",
}


def pages() -> dict[str, str]:
    import deepgen

    missing = set(deepgen.__all__) - set(" ".join(GROUPS.values()).split())
    if missing:
        raise SystemExit(f"website/api.py: GROUPS has no place for {', '.join(sorted(missing))}")
    out = {}
    for title, names in GROUPS.items():
        out[_place(title)] = _page(title, "import deepgen as dg", "dg", deepgen, names)
    for module, names in _modules().items():
        out[_place(module)] = _page(
            f"`{module}`", f"import {module}", module, import_module(module), names, INTRODUCTIONS[module]
        )
    return out


def navigation() -> list[Any]:
    return [{title: _place(title)} for title in (*GROUPS, *_modules())]


def _modules() -> dict[str, str]:
    """The modules that can be imported here: the environment that builds the site may lack torch."""
    return {name: names for name, names in MODULES.items() if name != "deepgen.torch" or find_spec("torch")}


def _place(title: str) -> str:
    return f"{FOLDER}/{title.lower().replace(' ', '-').replace('.', '-')}.md"


def _page(title: str, imported: str, prefix: str, module: Any, names: str, introduction: str = "") -> str:
    lines = [f"# {title}\n", f"```python\n{imported}\n```\n", introduction + "\n"]
    for name in names.split():
        lines += _entry(f"{prefix}.{name}", getattr(module, name))
    return "\n".join(lines)


def _entry(name: str, thing: Any) -> Iterator[str]:
    short = name.rpartition(".")[2]
    yield f"## {short} {{#{short}}}\n"
    if inspect.isclass(thing):
        yield from _class(name, thing)
    elif callable(thing):
        yield _signature(name, thing)
        yield _words(thing)
    else:
        yield f"`{name}`\n"


def _class(name: str, thing: type) -> Iterator[str]:
    yield _signature(name, thing)
    generated = f"{thing.__name__}("  # the docstring generated for a dataclass without one
    doc = thing.__dict__.get("__doc__") or ""
    if not doc.startswith(generated):
        yield _words(thing)
    for key, member in sorted(vars(thing).items(), key=lambda item: item[0]):
        function = getattr(member, "__func__", member)
        if key.startswith("_") or not inspect.getdoc(function):
            continue
        if isinstance(member, property):
            yield f"**`{key}`**\n\n{_indented(inspect.getdoc(member) or '')}\n"
        elif inspect.isfunction(function):
            shown = f"{key}{_parameters(function, method=not isinstance(member, staticmethod))}"
            yield f"**`{_one_line(shown)}`**\n\n{_indented(inspect.getdoc(function) or '')}\n"


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and getattr(thing, "_is_protocol", False):
        return f"```python\nclass {name}(Protocol)\n```\n"
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return f"```python\nclass {name}(Exception)\n```\n"
    if inspect.isclass(thing) and hasattr(thing, "__members__"):
        return f"```python\n{name}: {', '.join(thing.__members__)}\n```\n"
    kind = "class " if inspect.isclass(thing) else ""
    return f"```python\n{kind}{name}{_parameters(thing)}\n```\n"


def _parameters(thing: Any, method: bool = False) -> str:
    """The signature as in the source, with one parameter per line if it is long."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    if inspect.isclass(thing) or not parameters:
        signature = signature.replace(
            return_annotation=inspect.Signature.empty if inspect.isclass(thing) else signature.return_annotation
        )
    whole = _plain(str(signature.replace(parameters=parameters)))
    if len(whole) < 80:
        return whole
    lines: list[str] = []
    keyword = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not keyword and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            lines.append("    *,")
        keyword |= one.kind is one.KEYWORD_ONLY
        lines.append(f"    {_plain(str(one))},")
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else " -> " + _plain(str(returned).strip("'"))
    return "(\n" + "\n".join(lines) + "\n)" + arrow


def _plain(text: str) -> str:
    """Clean up a signature: `inspect` quotes string annotations, and default objects show their address."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r"<(?:function|class|object|factory)[^>]*>", "...", text)
    return re.sub(r"\b(?:deepgen|collections\.abc|typing)(?:\.\w+)*\.(?=\w)", "", text)


def _one_line(text: str) -> str:
    return re.sub(r",\s*\)", ")", re.sub(r"\s+", " ", text).replace("( ", "("))


def _words(thing: Any) -> str:
    return (inspect.getdoc(thing) or "") + "\n"


def _indented(text: str) -> str:
    return "\n".join(f":   {line}" if number == 0 else f"    {line}" for number, line in enumerate(text.splitlines()))
