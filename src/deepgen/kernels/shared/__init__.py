"""What families of kernels share, and code outside the package may include."""

from __future__ import annotations

from importlib import resources

from deepgen.vocabulary import Source

_TILES = "gemm/x86_amx_gemm"
_FOLDERS = {"cpu_pool.h": "shared", "x86_pool.h": "shared", "tiles.h": _TILES, "emulate.h": _TILES}


def shared_headers() -> tuple[Source, ...]:
    """A pool of threads, and products by tiles of AMX or what stands in for them."""
    folder = resources.files("deepgen.kernels")
    return tuple(Source(name, folder.joinpath(place, name).read_text()) for name, place in _FOLDERS.items())
