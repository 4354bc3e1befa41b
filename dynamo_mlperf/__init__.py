"""dynamo_mlperf: a topology file goes in, a defensible MLPerf Inference result comes out."""

__version__ = "0.1.0"
