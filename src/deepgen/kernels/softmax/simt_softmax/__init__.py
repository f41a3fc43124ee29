"""Softmax on the plain arithmetic units of GPUs."""
