"""The command line, installed as `deepgen`, or as `python -m deepgen`."""

from __future__ import annotations

import sys
from typing import NoReturn


def run() -> NoReturn:
    """Start the command line. A Ctrl-C while it is still being imported ends it like any other."""
    try:
        from deepgen.frontends.cli.main import run as start
    except KeyboardInterrupt:
        sys.exit(130)
    start()


if __name__ == "__main__":
    run()
