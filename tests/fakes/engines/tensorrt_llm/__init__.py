"""Stands in for TensorRT-LLM, which needs a GPU to import."""
