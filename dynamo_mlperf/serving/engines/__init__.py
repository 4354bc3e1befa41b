"""Command lines of engines: pure functions from frozen facts, one module per engine."""
