"""Twins of published code that differs from its paper, so that published numbers can be reproduced.

Each is a mechanism like any other (`-a lra_local`), marked `fidelity`: shown apart, never ranked. The correct mechanism
for the same idea lies one folder up, and imports nothing from here.
"""
