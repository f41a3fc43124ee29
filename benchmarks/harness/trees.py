"""Run the same with two source trees of deepgen: each in separate processes, with separate folders."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tree:
    """A checkout, and a folder for its processes' caches, settings and bytecode."""

    root: Path
    scratch: Path

    @property
    def source(self) -> Path:
        return self.root / "src" if (self.root / "src").is_dir() else self.root

    @property
    def environment(self) -> dict[str, str]:
        """Only modules of this tree. Bytecode is written to a separate folder, as after an installation."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        folders = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "PYTHONPYCACHEPREFIX": "bytecode"}
        return {
            **env,
            **{name: str(self.scratch / folder) for name, folder in folders.items()},
            "PYTHONPATH": str(self.source),
        }

    def calm(self) -> None:
        """Settings so that commands do not wait for a quiet machine: deepgen is timed, not the machine."""
        folder = self.scratch / "config" / "deepgen"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if "calm_seconds" in (self.source / "deepgen" / "settings.py").read_text():
            (folder / "deepgen.toml").write_text("[limits]\ncalm_seconds = 0\nrace_seconds = 2\n")

    def run(self, *words: str) -> str:
        """The output of `deepgen WORDS`. Raises if it fails."""
        return self.python("-m", "deepgen", *words)

    def python(self, *words: str) -> str:
        self.calm()
        argv = [sys.executable, *words]
        done = subprocess.run(argv, cwd=self.scratch, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed with the modules of {self.root}:\n{done.stderr.strip()}")
        return done.stdout
