"""Finals: the fastest trials and the baselines, verified on harder inputs and timed side by side."""
