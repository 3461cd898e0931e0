"""Which images to label next, and labels that come back."""
