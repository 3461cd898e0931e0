"""What is done with a finished run: measures, predictions, the exported model and its card."""
