"""Reports: what is known of studies as plain data, as charts, and as one page that needs nothing else."""
