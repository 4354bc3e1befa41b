"""`python -m dynamo_mlperf.cli`: how the controller calls our own verbs on a node."""

from dynamo_mlperf.cli import main

main()
