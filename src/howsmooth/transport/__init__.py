"""Tokens as measures: points with masses, how far apart two of them are, and attention as a push-forward."""
