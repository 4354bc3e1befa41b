"""The topology file: what it may say, the plan that follows from it, and the batch lines that ask Slurm for it."""
