"""Copied to the top of a bundle as `run.py`: reports missing requirements before newer syntax is parsed."""

import os
import sys

if sys.version_info < (3, 8):  # noqa: UP036  the one place that older Pythons read
    sys.exit("bundle: this Python is %d.%d, and 3.8 or newer is needed" % sys.version_info[:2])  # noqa: UP031
try:
    import numpy  # noqa: F401
except ImportError:
    sys.exit("bundle: numpy is missing; install your system's package (python3-numpy), or `pip install numpy`")

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [folder] + [p for p in sys.path if p and p != folder]
    from deepgen.tuning.bundles.runner import main

    sys.exit(main(folder, sys.argv[1:]))
