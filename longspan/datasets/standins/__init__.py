"""Made-up examples for the smoke tier, by rule and from a seed: learnable, and nothing like the real ones."""
