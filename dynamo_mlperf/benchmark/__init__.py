"""MLPerf Inference v6.1: rules, data sets and accuracy scoring of the benchmarks."""
