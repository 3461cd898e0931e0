"""The fast way through the network on a GPU; everything else computes the same without it."""
