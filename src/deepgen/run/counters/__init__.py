"""Counters: what hardware and disassembly tell of a kernel beside its time, taken in runs of their own."""
