"""The command line of a benchmark: common options, a time limit, and how it ends."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Case = TypeVar("Case")


class Options(argparse.Namespace):
    """Common options with types. A benchmark's own options are attributes as well."""

    seed: int
    json: Path | None
    time_limit: float
    only: list[str]
    begun: float = -1.0

    @property
    def file(self) -> Path:
        """The results of a benchmark that resumes an earlier run."""
        if self.json is None:
            raise SystemExit("--json: name a file")
        return self.json

    def deadline(self) -> Deadline:
        """From when the options were parsed."""
        return Deadline(self.time_limit, self.begun)

    def chosen(self, cases: Iterable[Case], name: Callable[[Case], str] = str) -> list[Case]:
        """The cases whose name contains one of the words of `--only`; without it, all."""
        every = list(cases)
        if not self.only:
            return every
        some = [case for case in every if any(word in name(case) for word in self.only)]
        if not some:
            names = ", ".join(name(case) for case in every[:5])
            raise SystemExit(f"--only: none of {len(every)} cases has this in its name; they are called {names} ...")
        return some


class Parser(argparse.ArgumentParser):
    """Parses into Options."""

    def options(self, argv: Sequence[str] | None = None) -> Options:
        return self.parse_args(argv, Options(begun=time.monotonic()))


def parser(about: str | None, *, seed: int = 0, json: Path | None = None) -> Parser:
    """A parser with the options that all benchmarks have; `about` is the module's docstring."""
    out = Parser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--seed", type=int, default=seed, help=f"what is drawn by chance is drawn from it [{seed}]")
    out.add_argument("--json", type=Path, default=json, metavar="FILE", help="where results are written")
    out.add_argument("--time-limit", type=float, default=float("inf"), metavar="S", help="no case begins later")
    out.add_argument("--only", action="append", default=[], metavar="TEXT", help="cases with this in their name")
    return out


@dataclass(frozen=True)
class Deadline:
    """A time limit in seconds from its creation."""

    seconds: float
    begun: float = -1.0

    def __post_init__(self) -> None:
        if self.begun < 0:
            object.__setattr__(self, "begun", time.monotonic())

    @property
    def left(self) -> float:
        return self.begun + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        return self.left <= 0


def run_main(main: Callable[[], object]) -> None:
    """Run a benchmark's main function. User errors are printed as they are. An interrupt ends it silently, and so does
    a closed output, as with `head`. The return value of main is the exit status.
    """
    from deepgen.vocabulary import DeepgenError

    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except DeepgenError as error:
        raise SystemExit(str(error)) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for output that is still written at exit
        raise SystemExit(1) from None
    if status:
        raise SystemExit(status)
