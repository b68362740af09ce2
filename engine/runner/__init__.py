"""The runner: the only place that turns plans into tensors and results back into values."""
