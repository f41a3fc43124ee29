"""Where builds and measurements are executed."""

from deepgen.engines.base import Arena, Engine, Look, Outcome, Session
from deepgen.engines.local import LocalEngine

__all__ = ["Arena", "Engine", "LocalEngine", "Look", "Outcome", "Session"]
