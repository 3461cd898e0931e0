"""The reference part of the documentation, made from the code while the pages are built."""
