"""Acceleration: fused copies of the networks, and CUDA graphs of whole walks."""
