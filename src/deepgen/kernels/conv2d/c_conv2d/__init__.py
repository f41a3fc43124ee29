"""2-D convolution in portable C, for any processor."""
