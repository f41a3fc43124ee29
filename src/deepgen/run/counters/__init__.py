"""Counters: hardware events and instruction mix of a kernel, collected in separate runs."""
