"""The commands `deepgen cluster ...`."""
