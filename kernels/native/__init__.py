"""C for CPUs: the rules, dense layers, convolutions, the loss and RMSProp; README.md lists the sources."""
