"""Model weights: cast, checked. The tensors themselves are read by workers in an interpreter that has torch."""
