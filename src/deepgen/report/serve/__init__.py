"""Studies in the browser while they run: all viewers share one reader of the journals, and pages require a token."""
