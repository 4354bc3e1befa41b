"""Staging: weights, data sets and images from shared storage to each node's own disk, whole or not at all."""
