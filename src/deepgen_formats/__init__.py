"""Files and calls of other tuners."""
