"""Built-in operators defined by expressions, each with its own parameters."""
