"""`deltabeast compare`: from finished runs to curves, scores, statistics and a report of them."""
