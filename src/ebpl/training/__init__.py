"""Training: loss terms, the train step, its state, the loop, and what listens to it."""
