"""Files and APIs of other tuners."""
