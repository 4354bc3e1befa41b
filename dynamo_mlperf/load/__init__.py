"""The load clients: LoadGen, its settings and logs, the HTTP side of a measurement, and the verdict on it."""
