"""The controller: one process on the first node that takes a topology file to a recorded verdict."""
