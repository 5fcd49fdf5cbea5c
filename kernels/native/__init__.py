"""C for CPUs: the rules, and the stems' work between convolutions."""
