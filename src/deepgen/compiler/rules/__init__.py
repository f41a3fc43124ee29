"""Schedule rules: from an expression and a target to sketches, each a schedule template with its space."""
