"""The objective, one training step, the curriculum, the guard, and the trainer that runs them."""
