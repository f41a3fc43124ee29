"""The toolchains, one file per language."""
