"""The parts of `benchmarks/chaos.py`: a place to inject faults in, the faults, and the watchers of their effects."""
