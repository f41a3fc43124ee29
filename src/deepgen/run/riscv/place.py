"""Where programs run: what a place does for the runner, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deepgen.vocabulary import Json

ANSWERS, COUNTS, REQUEST = "answers", "counts", "request"  # files of a run


@dataclass(frozen=True)
class Ran:
    """A program that is over."""

    code: int  # its exit code, or minus the number of the signal that ended it
    in_time: bool
    seconds: float
    log: str  # what it printed
    folder: Path  # with its answers, its results, and what was counted

    @property
    def started(self) -> bool:
        return (self.folder / ANSWERS).exists()

    def read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""


class Place(Protocol):
    """Runs programs one at a time."""

    @property
    def conditions(self) -> Mapping[str, Json]:
        """What is to be known of measurements taken there."""
        ...

    @property
    def lacks(self) -> str:
        """What its processor lacks of the target's, in words: why an instruction may be unknown there."""
        ...

    @property
    def counts(self) -> bool:
        """Whether instructions are counted there in place of times."""
        ...

    def run(self, program: Path, inputs: Path, request: str, seconds: float, *, counted: bool) -> Ran:
        """Run a program in a fresh folder with its request and these files of inputs. Raises DeepgenError where that
        is not possible."""
        ...

    def close(self) -> None: ...
