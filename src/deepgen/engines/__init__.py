"""Where builds and measurements are carried out."""

from deepgen.engines.base import Arena, Engine, Entry, Look, Outcome, Session
from deepgen.engines.local import LocalEngine

__all__ = ["Arena", "Engine", "Entry", "LocalEngine", "Look", "Outcome", "Session"]
