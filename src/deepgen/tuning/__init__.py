"""Studies: the tuner's loop, its journal, and the finals that choose the winner."""

from deepgen.tuning.progress import Progress
from deepgen.tuning.request import Request
from deepgen.tuning.study import Best, Study
from deepgen.tuning.tuner import tune

__all__ = ["Best", "Progress", "Request", "Study", "tune"]
