"""Simulated serving systems for the rate search: what they are, how they run, what their true rate is."""
