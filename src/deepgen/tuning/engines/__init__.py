"""Where builds and measurements are executed."""

from deepgen.tuning.engines.base import Arena, Engine, Look, Outcome, Session
from deepgen.tuning.engines.local import LocalEngine, local_engine

__all__ = ["Arena", "Engine", "LocalEngine", "Look", "Outcome", "Session", "local_engine"]
