"""What `benchmarks/chaos.py` is made of: a place to do harm in, the faults, and those who watch what becomes of it."""
