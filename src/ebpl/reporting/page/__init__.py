"""The page about a run: one HTML file that needs nothing else, made by `ebpl report`."""
