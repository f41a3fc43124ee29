"""Winners: stored, loaded, and handed to other programs."""

from deepgen.library.gpu import LoadedGpuKernel
from deepgen.library.loaded import LoadedKernel, load
from deepgen.library.store import Stored, read_winner, write_winner

__all__ = ["LoadedGpuKernel", "LoadedKernel", "Stored", "load", "read_winner", "write_winner"]
