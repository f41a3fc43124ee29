"""A simulator of VTA: what a program computes, whether its modules race, and how many cycles it takes."""
