"""How fast training and prediction are, with records: `python -m benchmarks` in a checkout."""
