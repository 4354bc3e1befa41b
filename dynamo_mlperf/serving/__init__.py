"""The deployment: command lines of engines, frontends and stores; readiness, counters, supervision."""
