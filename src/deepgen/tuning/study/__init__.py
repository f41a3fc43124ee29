"""Studies on disk: journals, reading them, and trust."""
