"""What a run of a probe leaves for those that read it; imports nothing heavy."""

RESULT = "scores.json"
"""what a run writes when it ends: `metric`, `best` of it, `updates`, and `test`, scores by name, if there is
one"""
LEAST = ("loss", "perplexity")
"""metrics of which less is better"""
