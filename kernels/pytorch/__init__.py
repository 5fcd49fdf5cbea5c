"""The rules in PyTorch, for every device and dtype: chunk forms and lean loops."""
