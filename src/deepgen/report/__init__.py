"""Reports: what is known about studies, as plain data, as charts, and as one self-contained page."""
