"""The pool's CUDA kernels without a GPU: compiled as C, and run by a driver on host memory.

gcc builds a kernel's text into an image that the driver of `tests/run/measure/fake_cuda.c` loads. One thread loops over
all elements. Misaligned loads trap, as on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import OnDevice, build_driver

from deepgen.run.measure import spawn
from deepgen.targets import Target, gpu_driver, host
from deepgen.toolchains import BuildError, BuildLimits, Built, Group, Toolchain, toolchains_for
from deepgen.tuning.engines import local
from deepgen.vocabulary import Kernel, Verdict
from pool.fault import Call
from pool.runner import Place

_HEAD = """
#include <math.h>
#include <unistd.h>
#define PAUSE usleep(300)
#define ENTRY static void
#define EACH(i, n) for (int i = 0; i < (n); i++)
#define __device__ static
#define BARRIER __asm__ volatile("" : : : "memory")
typedef struct __attribute__((aligned(16))) { float x, y, z, w; } float4;
"""
_TRAPS = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")


@dataclass(frozen=True)
class EmulatedCuda:
    """Builds the pool's kernels for the driver on host memory, and everything else like the real toolchain."""

    real: Toolchain
    images: Path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @property
    def id(self) -> str:
        return f"emulated-{self.real.id}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        text = kernel.sources[0].text
        entry = re.search(r"^ENTRY (\w+)\((.*)\) \{", text, re.MULTILINE)
        if entry is None:
            return self.real.build(kernel, target, folder, limits, group)
        name, parameters = entry.groups()
        types = [re.sub(r"\w+$", "", one).strip() for one in parameters.split(",")]
        passed = ", ".join(f"*({of} *)p[{place}]" for place, of in enumerate(types))
        # Called by its plain name, which the driver looks up; the kernel itself has another name.
        launched = (
            f"int launched(void **p, const unsigned *grid, const unsigned *block) {{ {name}({passed}); return 0; }}"
        )
        source, library = folder / "emulated.c", folder / "emulated.so"
        alias = f'\n__asm__(".globl {name}_entry\\n.set {name}_entry, launched");\n'
        source.write_text(_HEAD + text + launched + alias)
        macros = [flag for flag in kernel.flags if flag.startswith("-D")]
        command = ["gcc", "-O1", "-shared", "-fPIC", *_TRAPS, *macros, "-o", str(library), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(Verdict.BUILD_FAILED, done.stderr.splitlines()[0], done.stderr)
        kept = self.images / f"{kernel.id}.so"
        shutil.copyfile(library, kept)
        (folder / "kernel.cubin").write_bytes(f"FAKE:{kept}".encode() + bytes(1))
        step = replace(kernel.plan.steps[0], entry=f"{name}_entry")
        return Built("kernel.cubin", "cubin", {}, "", replace(kernel.plan, steps=(step,)))


@contextmanager
def emulated(folder: Path, toolchain: type[EmulatedCuda] = EmulatedCuda) -> Iterator[Place]:
    """Until it ends, this process and its workers have such a GPU. Raises Missing if NVRTC is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    if build_driver(folder) is None:
        raise FileNotFoundError("there is no C compiler to build the fake driver with")
    driver = ctypes.CDLL(str(folder / "libcuda.so.1"))

    def emulating(target: Target, paths: Mapping[str, str] | None = None) -> Callable[[str], Toolchain]:
        real = toolchains_for(target, paths)
        return lambda language: toolchain(real(language), folder) if language == "cuda" else real(language)

    def surrounded() -> dict[str, str]:
        # Only for processes that run kernels: NVRTC itself queries a driver that it finds.
        return {**unmarked(), "LD_LIBRARY_PATH": str(folder)}

    unmarked, fake = spawn.unmarked, replace(gpu_driver.CUDA, libraries=(str(folder / "libcuda.so.1"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpu_driver.APIS, "cuda", fake)
        patch.setattr(local, "toolchains_for", emulating)
        patch.setattr(host, "_driver", lambda: driver)
        patch.setattr(spawn, "unmarked", surrounded)
        yield Place("cuda:sm_90a", ("cuda",), on_fake)


def on_fake(loaded: Any) -> Call:
    """Arrays are on the device with their own layout; results are allocated here."""

    def call(*arrays: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        result = np.empty(arrays[0].shape, np.float32) if out is None else out
        loaded(*map(OnDevice, arrays), out=OnDevice(result), **options)
        return result

    return call
