"""Where builds and measurements are carried out."""

from deepgen.engines.base import Engine, Entry, Outcome, Session
from deepgen.engines.local import LocalEngine

__all__ = ["Engine", "Entry", "LocalEngine", "Outcome", "Session"]
