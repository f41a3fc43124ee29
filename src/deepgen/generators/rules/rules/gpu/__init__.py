"""Schedule rules for GPUs."""
