"""Results that are kept and published: the ledger, and the numbers made from it."""
