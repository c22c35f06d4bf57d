"""The package of torch_npu that has transfer_to_npu."""
