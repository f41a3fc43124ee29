"""A constrained space of your own: declare knobs and requirements, then count, sample and explain.

python examples/own_space.py
"""

from __future__ import annotations

from deepgen.space import Space


def main() -> None:
    space = Space("tiles")
    m = space.knob("BLOCK_M", [16, 32, 64, 128, 256])
    n = space.knob("BLOCK_N", [16, 32, 64, 128, 256])
    k = space.knob("BLOCK_K", [8, 16, 32, 64])
    stages = space.knob("STAGES", [1, 2, 3, 4])
    shared = space.derive("shared_bytes", (m + n) * k * stages * 4)
    space.require(shared <= 48 * 1024, "tiles fit in shared memory")
    space.require((m <= 2 * n) & (n <= 2 * m), "tiles are nearly square")

    print(f"{space.count()} of {space.product_size()} combinations are valid")
    for config in space.sample(3, seed=1):
        print(config, space.derived(config))
    for broken in space.explain({"BLOCK_M": 256, "BLOCK_N": 16, "BLOCK_K": 64, "STAGES": 4}):
        print(f"breaks '{broken.name}': {broken.values}")


if __name__ == "__main__":
    main()
