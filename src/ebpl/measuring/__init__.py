"""How good predictions are, and how far their confidence can be believed."""
