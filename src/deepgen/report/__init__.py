"""Studies as people see them: pages, plots, and a live view in the browser."""
