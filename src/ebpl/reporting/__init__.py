"""What people see: progress, figures, tables."""
