"""Fakes: programs and servers that stand in for what a test machine does not have."""
