"""`python -m dynamo_mlperf.cli`: how the controller calls our own verbs on a node."""

from dynamo_mlperf.cli import main

if __name__ == "__main__":  # processes that score answers import this module anew
    main()
