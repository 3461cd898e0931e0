"""The network and its two heads."""
