"""Processes: the only place that starts and stops any, on this machine or on the nodes of an allocation."""
