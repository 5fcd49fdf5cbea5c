"""The rules in PyTorch, for every device and dtype: chunk forms, and loops with a hand-written backward."""
