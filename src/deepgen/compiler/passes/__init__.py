"""From an expression and a schedule to loops, statements and buffers; the passes that refine them."""
