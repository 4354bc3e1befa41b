"""Accuracy: the published data sets, the scores of what a model answered to them, and `accuracy.txt`."""
