"""Its programs."""
