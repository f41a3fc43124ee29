"""Makes the helpers in this folder importable."""
