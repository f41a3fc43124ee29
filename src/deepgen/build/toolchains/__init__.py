"""The toolchains, one file a language."""
