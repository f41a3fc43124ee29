"""Families of products with weights of 4 bits."""
