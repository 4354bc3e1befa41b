"""Reports of one run: a terminal summary and one self-contained HTML page, made from the run directory alone."""
