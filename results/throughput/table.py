"""Print the results in cpu/ as the table of README.md."""

import json
from pathlib import Path

STAGES = ("emulation", "inference", "learning", "acting", "backward", "bound_apart", "bound", "trained")
print(
    "| stem | precision | core | emulation | inference | learning | acting, kept | backward | bound, anew "
    "| bound | trained | of the bound | core |"
)
print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
for path in sorted(Path(__file__).parent.glob("cpu/*.json"), reverse=True):
    stem, precision, core = path.stem.split("-")
    (result,) = json.loads(path.read_text())["results"]
    speeds = " | ".join(f"{result[stage]:,.0f}" for stage in STAGES)
    shares = f"{result['share_of_bound']:.2f} | {result['core_share']:.1%}"
    print(f"| {stem} | {precision} | {core} | {speeds} | {shares} |")
