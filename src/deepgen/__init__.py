"""deepgen: the fastest verified kernel for an operator on your own hardware."""

__version__ = "0.1.0"
