"""Studies in the browser while they run: one reader of the journals for all viewers, and pages behind a token."""
