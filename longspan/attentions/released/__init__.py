"""Twins of published code that computes something else than its paper, so that published numbers can be chased.

Each is a mechanism like any other (`-a lra_local`), marked `fidelity`: shown apart, never ranked. The correct mechanism
of the same idea lies one folder up, and nothing here is imported by it.
"""
