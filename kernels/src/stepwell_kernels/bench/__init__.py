"""What the kernels offer to `stepwell bench`."""
