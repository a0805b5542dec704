"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters."""
