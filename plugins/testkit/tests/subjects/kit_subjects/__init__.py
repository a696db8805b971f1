"""Right implementations, and wrong ones made of them by one fault each."""
