"""The Ray engine: builds on some nodes of a cluster, measurements on others."""

from deepgen_cluster.ray.engine import RayEngine

__all__ = ["RayEngine"]
