"""Instructions that do several operations at once, as data."""
