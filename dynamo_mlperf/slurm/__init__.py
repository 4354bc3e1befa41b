"""Slurm: node lists, the job that we are in, and its steps."""
