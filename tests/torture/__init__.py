"""Attacks on the tool, too long for the ordinary tests: `make torture`."""
