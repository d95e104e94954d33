"""A loaded model's layers in faster forms for a CPU: products of few rows, norms, quantized weights."""
