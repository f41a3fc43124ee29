"""Compiles one Triton kernel in a separate process, without a GPU, or lets a plug-in compile it. Run by triton.py.

It executes the kernel's source, as importing the user's file would. It is started without site-packages and gets
Triton's path.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

STEM, UNIT, REPORT = "kernel", "unit.json", "report.json"
PLUG_IN = "plug-in"
_HINTS = {"divisible": ["tt.divisibility", 16], "near": ["tt.pointer_range", 32]}
_BINARIES, _TEXTS = ("cubin", "hsaco"), ("ttgir", "ptx", "amdgcn")
_REPORTED = ("name", "shared", "num_warps", "global_scratch_size", "profile_scratch_size")


def build(source: str, backend: str, arch: str, warp: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    unit = json.loads(Path(UNIT).read_text())
    kernel = ASTSource(**_described(source, unit))
    chip = GPUTarget(backend, int(arch) if arch.isdigit() else arch, warp)
    compiled = triton.compile(kernel, target=chip, options=unit["options"])
    for form, content in compiled.asm.items():
        if form in _BINARIES:
            Path(f"{STEM}.{form}").write_bytes(content)
        elif form in _TEXTS:
            Path(f"{STEM}.{form}").write_text(content)
    Path(REPORT).write_text(json.dumps({name: getattr(compiled.metadata, name, 0) for name in _REPORTED}))


def hand_over(source: str, place: str) -> None:
    """Write the result of a plug-in's function for the kernel. It gets a name for files and Triton's arguments."""
    module, _, function = place.partition(":")
    unit = json.loads(Path(UNIT).read_text())
    make = getattr(importlib.import_module(module), function)
    Path(REPORT).write_text(json.dumps(make(name=STEM, options=unit["options"], **_described(source, unit))))


def _described(source: str, unit: Any) -> dict[str, Any]:
    """The function and its compile-time description, as Triton takes them."""
    function = _function(source, unit["entry"])
    parameters, names = unit["parameters"], function.arg_names
    return {
        "fn": function,
        "signature": {name: parameters[name][0] if name in parameters else "constexpr" for name in names},
        "constexprs": {name: _constant(value) for name, value in unit["constants"].items()},
        "attrs": {
            (names.index(name),): [_HINTS[word] for word in words] for name, (_, *words) in parameters.items() if words
        },
    }


def _function(source: str, entry: str) -> Any:
    spec = importlib.util.spec_from_file_location("deepgen_triton_kernel", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, entry)


def _constant(value: Any) -> Any:
    """A constant in the form for the kernel: "tl.float32" is the type of that name."""
    import triton.language as tl

    if isinstance(value, str) and value.startswith("tl."):
        return getattr(tl, value[len("tl.") :])
    return tuple(value) if isinstance(value, list) else value


def main() -> int:
    place, source, backend, arch, warp = sys.argv[1:]
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]  # it would change the code without changing the kernel's id
    os.environ["TRITON_BACKENDS_IN_TREE"] = "1"  # backends of other packages may need modules that are missing here
    os.environ["TRITON_CACHE_DIR"] = str(Path("cache").absolute())
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # the default of 3.9 and older releases; setting it avoids a warning
    sys.path.append(place)
    try:
        if backend == PLUG_IN:
            sys.path += arch.split(os.pathsep)  # for deepgen and the plug-in
            hand_over(source, warp)
        else:
            build(source, backend, arch, int(warp))
    except Exception as error:
        # The reason may be in the cause of the error, while Triton itself shows only the place in the source.
        chain: list[BaseException] = [error]
        while chain[-1].__cause__ is not None:
            chain.append(chain[-1].__cause__)
        lines = [line.strip() for one in chain for line in str(one).splitlines() if line.strip(" ^")]
        print(f"error: {type(chain[-1]).__name__}: {lines[-1] if lines else 'no reason given'}")
        print(*chain, sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
