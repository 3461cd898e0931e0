"""Sampling from an energy function; knows energies, not models."""
