"""Print the results in cpu/ as the table of README.md."""

import json
from pathlib import Path

STAGES = {
    **{name: name for name in ("emulation", "inference", "learning")},
    **{"acting": "acting, kept", "backward": "backward", "bound_apart": "bound, anew"},
    **{name: name for name in ("bound", "trained")},
}
paths = sorted(Path(__file__).parent.glob("cpu/*.json"), reverse=True)
results = [json.loads(path.read_text())["results"][0] for path in paths]
# Before features were kept for the learner, there were fewer.
stages = {name: title for name, title in STAGES.items() if all(name in result for result in results)}
titles = ("stem", "precision", "core", *stages.values(), "of the bound", "core")
print(f"| {' | '.join(titles)} |")
print("|---" * len(titles) + "|")
for path, result in zip(paths, results, strict=True):
    stem, precision, core = path.stem.split("-")
    speeds = " | ".join(f"{result[stage]:,.0f}" for stage in stages)
    shares = f"{result['share_of_bound']:.2f} | {result['core_share']:.1%}"
    print(f"| {stem} | {precision} | {core} | {speeds} | {shares} |")
