"""Schedule rules and constraint rules: an expression and a target give sketches, each a template and its space."""
