"""C for CPUs: rules, dense layers, convolutions, the loss and the optimizers; README.md lists the sources."""
