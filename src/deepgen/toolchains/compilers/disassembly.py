"""Machine code of binaries as text, through the tools of their makers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from deepgen.vocabulary import DeepgenError

_SECONDS = 60.0


def sass(nvdisasm: str, cubin: Path) -> str:
    """NVIDIA's machine code."""
    return _output(nvdisasm, "--print-code", str(cubin))


def objdump(program: str, binary: Path) -> str:
    """A processor's machine code."""
    return _output(program, "--disassemble", "--no-show-raw-insn", str(binary.absolute()))


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {error.returncode}"]
        raise DeepgenError(f"{argv[0]} cannot disassemble it: {said[-1].strip()}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise DeepgenError(f"{argv[0]} cannot disassemble {argv[-1]}: {error}") from error
    return done.stdout.decode(errors="replace")
