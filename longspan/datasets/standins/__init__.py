"""Synthetic examples for the smoke tier, by rule and from a seed: learnable, and unlike the real data."""
