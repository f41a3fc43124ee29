"""Matrix products on VTA: how they are matched, tiled, and written as its instructions."""
