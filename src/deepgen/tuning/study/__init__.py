"""A study on disk: its journal, how it is read, and whether it is trusted."""
