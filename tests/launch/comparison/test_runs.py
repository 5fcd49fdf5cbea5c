"""Which runs are compared, which are averaged, and what is said of the rest."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from comparison_runs import add_evaluation, make_run

from deltabeast.agents import AgentSpec
from deltabeast.cores import core_names
from deltabeast.cores.registry import find_core
from deltabeast.envs import game_info
from deltabeast.launch.comparison.aggregation import Aggregation
from deltabeast.launch.comparison.differences import differences
from deltabeast.launch.comparison.grouping import Comparison, compare
from deltabeast.launch.comparison.names import file_name, name_of
from deltabeast.launch.comparison.plots import looks
from deltabeast.launch.comparison.reading import read_runs
from deltabeast.launch.comparison.relative import CLEAR, wins
from deltabeast.launch.comparison.runs import WITHOUT_FAST_WEIGHTS, Run, find_runs, read_run
from deltabeast.launch.comparison.scores import ScoreBoard, older_scores, score_board, unequal_steps
from deltabeast.launch.comparison.sections.abilities import abilities
from deltabeast.launch.comparison.sections.forgetting import forgetting
from deltabeast.launch.comparison.sections.operations import operations
from deltabeast.launch.comparison.sections.published import score_text
from deltabeast.launch.comparison.sections.relative import relative
from deltabeast.launch.comparison.sections.runs import published_differences
from deltabeast.launch.comparison.sections.scores import conclusions, improvement
from deltabeast.launch.comparison.sections.scores import scores as scores_section
from deltabeast.launch.config import EvalConfig
from deltabeast.launch.evaluation.environments import choose_protocol
from deltabeast.launch.parsing import parse


def read(*arguments: Path | str) -> tuple[list[Run], list[str]]:
    paths, problems = find_runs([str(argument) for argument in arguments])
    runs = []
    for path in paths:
        run, wrong = read_run(path)
        problems += wrong
        runs += [run] if run else []
    return runs, problems


def compared(root: Path) -> tuple[Comparison, ScoreBoard]:
    runs, _ = read(root)
    comparison = compare(runs)
    return comparison, score_board(comparison)


def values(board: ScoreBoard) -> dict[tuple[str, str], list[float]]:
    return {cell: [score.value for score in scores] for cell, scores in board.cells.items()}


def test_runs_are_found_by_path_glob_and_tree_each_once(tmp_path: Path) -> None:
    wanted = [make_run(tmp_path, core=core, seed=seed) for core in ("lstm", "rdn") for seed in (1, 2)]
    (tmp_path / "comparison" / "tensorboard").mkdir(parents=True)
    assert sorted(find_runs([str(tmp_path)])[0]) == sorted(wanted)
    assert find_runs([str(tmp_path / "*" / "rdn" / "seed-*")])[0] == wanted[2:]
    assert find_runs([str(wanted[0]), str(tmp_path / "gopher"), str(wanted[0])])[0][0] == wanted[0]
    assert len(find_runs([str(wanted[0]), str(tmp_path), f"{tmp_path}/**/seed-1"])[0]) == 4


def test_what_names_no_run_is_said_and_the_rest_is_found(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "empty").mkdir()
    found, problems = find_runs(["nowhere", str(run), str(tmp_path / "empty"), str(tmp_path / "x*")])
    assert found == [run] and [line.split(";")[0] for line in problems] == [
        "no run at nowhere", f"no run at {tmp_path / 'empty'}", f"no run at {tmp_path / 'x*'}"
    ]  # fmt: skip


def damage_config(run: Path) -> None:
    (run / "config.json").write_text("{")


def damage_log(run: Path) -> None:
    (run / "logs.csv").write_text("step,time,game_return\n1,2,abc\n")


def damage_wide_log(run: Path) -> None:
    (run / "logs.csv").write_text("step,time\n1,2,3,4\n")


def remove_log(run: Path) -> None:
    (run / "logs.csv").unlink()


def remove_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def damage_weights(run: Path) -> None:
    next(run.glob("checkpoints/*/weights.safetensors")).write_bytes(b"other")


def damage_manifest(run: Path) -> None:
    next(run.glob("checkpoints/*/manifest.json")).write_text("[]")


def damage_evaluation(run: Path) -> None:
    (run / "eval" / "broken.json").write_text('{"results": null}')


def damage_operation(run: Path) -> None:
    operate(run, "2026-03-01", {"wipe@7": (1.0, [2.0])})


def leave_episodes_endless(run: Path) -> None:
    (file,) = (run / "eval").glob("*.json")
    content = json.loads(file.read_text())
    content["results"]["trained"]["unfinished"] = 3
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (leave_episodes_endless, "3 episodes of eval/"),
        (damage_operation, "cannot be read; evaluate again with"),
        (damage_config, "config.json cannot be read"),
        (damage_log, "logs.csv is damaged"),
        (damage_wide_log, "logs.csv is damaged"),
        (remove_log, "no logs.csv"),
        (damage_weights, "weights.safetensors of its newest checkpoint is damaged"),
        (damage_manifest, "manifest.json of its newest checkpoint is damaged"),
        (damage_evaluation, "broken.json cannot be read; evaluate again"),
    ],
)
def test_damage_is_one_line_and_the_run_is_still_used(harm: Any, said: str, tmp_path: Path) -> None:
    whole, hurt = make_run(tmp_path, seed=1, scores=[5]), make_run(tmp_path, seed=2, scores=[7])
    harm(hurt)
    runs, problems = read(tmp_path)
    assert [run.path for run in runs] == [whole, hurt]
    (line,) = problems
    assert said in line and str(hurt) in line and "\n" not in line
    assert runs[1].core == "rdn" and runs[1].game == "gopher" and runs[1].seed == 2
    assert runs[1].evaluations[0].life == 7


def test_weights_are_missed_only_where_nothing_was_evaluated(tmp_path: Path) -> None:
    kept, unknown = make_run(tmp_path, seed=1, scores=[5]), make_run(tmp_path, seed=2, scores=[7])
    for run in (kept, unknown):
        remove_checkpoints(run)
    shutil.rmtree(unknown / "eval")
    runs, (line,) = read(tmp_path)
    assert [run.seed for run in runs] == [1, 2]
    assert str(unknown) in line and "no checkpoint" in line


def name_no_game(run: Path) -> None:
    remove_checkpoints(run)
    (run / "config.json").write_text('{"config": {"game": "gophr", "core": "rdn"}}')


@pytest.mark.parametrize("harm", [[damage_config, remove_checkpoints], [remove_log], [name_no_game]])
def test_a_run_of_which_too_little_is_left_is_left_out(harm: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for each in harm:
        each(run)
    runs, problems = read(tmp_path)
    (line,) = problems
    assert runs == [] and line.startswith(f"{run}: left out; ")


def test_protocols_are_never_mixed(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path, seed=seed, scores=[10 * seed])
    other = make_run(tmp_path, seed=3, protocol="ale-standard", scores=[1000])
    add_evaluation(other, 2000)  # evaluated as the others were, but not trained so
    comparison, board = compared(tmp_path)
    assert [run.seed for run in comparison.runs()] == [1, 2]
    assert comparison.protocol == "paper-code" and values(board) == {("gopher", "rdn"): [10, 20]}
    (line,) = comparison.left_out
    assert str(other) in line and "ale-standard" in line and "paper-code" in line


def test_evaluations_of_another_protocol_or_sampled_are_no_scores(tmp_path: Path) -> None:
    make_run(tmp_path, seed=1, scores=[10])
    wrong = make_run(tmp_path, seed=2)
    add_evaluation(wrong, 1000, protocol="ale-standard")
    add_evaluation(wrong, 2000, greedy=False)
    none = make_run(tmp_path, seed=3)
    comparison, board = compared(tmp_path)
    assert values(board) == {("gopher", "rdn"): [10]} and len(comparison.runs()) == 3
    assert len(board.left_out) == 2
    assert f"deltabeast eval {wrong} --protocol paper-code" in board.left_out[0]
    assert f"{none}: no evaluation" in board.left_out[1]
    assert "Evaluations under ale-standard are left out" in board.description


def test_greedy_and_sampled_scores_are_not_mixed_in_a_game_but_may_be_over_games(tmp_path: Path) -> None:
    for seed in (1, 2):
        add_evaluation(make_run(tmp_path, core="lstm", seed=seed), 9, protocol="ale-standard", greedy=False)
        add_evaluation(make_run(tmp_path, "boxing", "lstm", seed), 1, greedy=False)
    make_run(tmp_path, core="rdn", scores=[20])
    add_evaluation(make_run(tmp_path, "boxing", "rdn"), 2)
    add_evaluation(make_run(tmp_path, "deltabeast/Overwrite-v0", protocol=None, env=True), 3, protocol=None)
    _, board = compared(tmp_path)
    assert set(board.cells) == {
        ("boxing", "lstm"),
        ("deltabeast/Overwrite-v0", "rdn"),
        ("gopher", "rdn"),
    }
    assert board.sampled == ["boxing"]
    assert "under paper-code, greedy, on boxing with sampled actions: of several" in board.description
    (line,) = [line for line in board.left_out if "boxing" in line]
    assert "boxing/rdn/seed-1: evaluated otherwise (paper-code, greedy)" in line and "--sample" in line


def test_a_game_without_evaluations_is_to_be_evaluated_as_others_are(tmp_path: Path) -> None:
    for core in ("lstm", "rdn"):
        add_evaluation(make_run(tmp_path, core=core), 1, greedy=False)
        make_run(tmp_path, "boxing", core)
    _, board = compared(tmp_path)
    assert board.sampled == ["gopher"] and "under paper-code, with sampled actions:" in board.description
    assert all("--sample" in line for line in board.left_out) and len(board.left_out) == 2


def test_the_newest_whole_evaluation_of_the_highest_step_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path, scores=[1, 2])
    add_evaluation(run, 50, step=100_000, time="2027-01-01")
    add_evaluation(run, 70, time="2027-01-02", count=1)  # a quick look
    _, board = compared(tmp_path)
    assert values(board) == {("gopher", "rdn"): [2]}


def test_scores_of_other_steps_are_left_out(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path, seed=seed, scores=[seed])
    early = make_run(tmp_path, seed=3)
    add_evaluation(early, 99, step=200_000)
    _, board = compared(tmp_path)
    assert values(board) == {("gopher", "rdn"): [1, 2]}
    assert (
        str(early) in board.left_out[0] and "200,000" in board.left_out[0] and "300,000" in board.left_out[0]
    )


def test_series_that_trained_for_less_are_named(tmp_path: Path) -> None:
    for core, step in (("lstm", 300_000), ("rdn", 290_000), ("delta_net", 100_000)):
        add_evaluation(make_run(tmp_path, core=core), 1, step=step)
        add_evaluation(make_run(tmp_path, "pong", core), 1, step=200_000 + step // 100)
    _, board = compared(tmp_path)
    (line,) = unequal_steps(board)
    assert "gopher" in line and "delta_net 100,000" in line and "lstm 300,000" in line


def test_runs_of_other_settings_are_series_of_their_own(tmp_path: Path) -> None:
    for seed, bptt in enumerate(["full", "full", "per_step"], 1):
        make_run(tmp_path, seed=seed, bptt=bptt, scores=[seed])
    make_run(tmp_path, core="lstm", seed=1, steps="600k", scores=[9])
    comparison, board = compared(tmp_path)
    assert values(board) == {
        ("gopher", "rdn · steps 300k"): [1, 2],
        ("gopher", "rdn · steps 300k · bptt per_step"): [3],
        ("gopher", "lstm · steps 600k"): [9],
    }
    assert comparison.notes[0].startswith("Runs of the same game differ in steps, bptt.")
    assert comparison.notes[1] == "Series that do not say otherwise have bptt full."


def test_a_value_that_half_of_the_runs_have_is_named_as_the_others(tmp_path: Path) -> None:
    for seed in range(1, 7):
        make_run(tmp_path, seed=seed, learning_rate=0.1 * (seed > 3), scores=[seed])
    comparison, _ = compared(tmp_path)
    assert comparison.series == ["rdn · learning rate 0.0", "rdn · learning rate 0.1"]
    for seed in range(1, 6):
        make_run(tmp_path, core="lstm", seed=seed, learning_rate=seed, scores=[seed])
    comparison, _ = compared(tmp_path)
    assert comparison.notes[1] == "One seed only, so no spread over seeds: 5 of 7 series."


def test_a_run_without_a_setting_does_not_pass_for_one_with_the_usual_value(tmp_path: Path) -> None:
    for seed, settings in enumerate(({}, {"momentum": 0.5}, {"momentum": 0.5}, {"momentum": 1.0}), 1):
        make_run(tmp_path, seed=seed, **settings)
    assert compared(tmp_path)[0].series == ["rdn", "rdn · momentum 0.5", "rdn · momentum 1.0"]


def test_one_seed_in_several_games_is_counted_by_game(tmp_path: Path) -> None:
    for game in ("gopher", "pong"):
        for core in ("rdn", "lstm", "delta_net"):
            make_run(tmp_path, game, core)
    make_run(tmp_path, "pong", "rdn", seed=2)
    notes = compared(tmp_path)[0].notes
    assert "One seed only, so no spread over seeds: 5 of 6 series, counted in each game." in notes


def test_of_many_pairs_the_furthest_apart_are_drawn(tmp_path: Path) -> None:
    for n in range(9):
        make_run(tmp_path / str(n), learning_rate=n / 3, scores=[n * n])
    comparison, board = compared(tmp_path)
    style = looks(comparison.core_of)
    assert "rdn · learning rate 0.333333" in comparison.series
    section = improvement(comparison, board, style)
    assert len(section.tables[0].rows) == 36
    assert section.plots[0].caption.endswith("The likeliest 30 of 36 pairs.")
    assert section.plots[0].figures.svg.count(">over rdn") == 30
    (section,) = relative(comparison, board)
    assert len(section.tables[0].rows) == 36 and "Of 36 pairs the 30 are drawn" in section.text[-1]
    assert section.plots[0].figures.svg.count(">over rdn") == 30


def test_bptt_is_no_setting_of_a_core_without_fast_weights(tmp_path: Path) -> None:
    """What `--cores rdn lstm --bptt per_step` makes is the published pair: nothing about it differs."""
    make_run(tmp_path, core="rdn", bptt="per_step")
    make_run(tmp_path, core="lstm", seed=1, bptt="full", scores=[1])
    make_run(tmp_path, core="lstm", seed=2, bptt="per_step", scores=[2])
    make_run(tmp_path, core="feedforward", seed=1, bptt="full", scores=[1])
    make_run(tmp_path, core="feedforward", seed=2, bptt="per_step", format=1, scores=[2])
    comparison, board = compared(tmp_path)
    assert comparison.series == ["feedforward", "lstm", "rdn"]
    assert len(comparison.cells["gopher", "feedforward"]) == 2 == len(comparison.cells["gopher", "lstm"])
    assert "bptt" not in "\n".join([*comparison.notes, *differences(comparison, board)])
    for name in core_names():
        assert find_core(name).has_fast_weights == (name not in WITHOUT_FAST_WEIGHTS), name  # type: ignore[attr-defined]


def test_clear_wins_are_the_papers_own_counts() -> None:
    """Seven of the eight that Irie et al. (2021) give in words."""

    def clear(core: str, baseline: str, millions: int) -> tuple[int, int, int]:
        return wins(core, baseline, millions, CLEAR)

    assert clear("rdn", "lstm", 50) == (12, 5, 3) and clear("rdn", "lstm", 200) == (9, 5, 6)
    assert clear("feedforward", "lstm", 50) == (8, 4, 8) and clear("delta_rnn", "lstm", 200) == (5, 7, 8)
    assert clear("rdn", "delta_net", 200)[2] == 7
    assert [clear("rdn", "linear_transformer", millions)[2] for millions in (50, 200)] == [2, 2]
    assert wins("rdn", "lstm", 50) == (12, 1, 7)  # without a margin only Pong is even


def test_names_of_files_have_an_end() -> None:
    """A series that differs in many options has a label longer than a file's name may be."""
    labels = [f"rdn · {' · '.join(f'option {i} {i}' for i in range(40))} · seed {n}" for n in (1, 2)]
    names = [file_name(label) for label in labels]
    assert names[0] != names[1] and all(len(name) <= 80 and name.startswith("rdn") for name in names)
    assert file_name("ALE/Pong-v5") == "ALE-Pong-v5"


def test_a_core_under_its_older_spelling_is_the_same(tmp_path: Path) -> None:
    for seed, core in enumerate(("rdn-large", "rdn_large"), 1):
        make_run(tmp_path, core=core, seed=seed)
    comparison, _ = compared(tmp_path)
    assert comparison.series == ["rdn_large"] and len(comparison.cells["gopher", "rdn_large"]) == 2
    assert score_text("gopher", "rdn_large", 200) == "118,273 ± 14,872"


def test_an_lstm_that_an_earlier_version_truncated_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, core="lstm", seed=1, bptt="per_step", format=1, scores=[1])
    make_run(tmp_path, core="lstm", seed=2, bptt="full", format=1, scores=[2])
    _, board = compared(tmp_path)
    assert values(board) == {("gopher", "lstm"): [2], ("gopher", "lstm, truncated"): [1]}


def test_options_that_change_nothing_learned_do_not_split(tmp_path: Path) -> None:
    make_run(tmp_path, seed=1, log_seconds=3.0, device="cpu", run_dir="a", stem="auto", bptt="full")
    make_run(tmp_path, seed=2, log_seconds=9.0, device="cuda", run_dir="b", stem="nature", steps="0.3M")
    make_run(tmp_path, seed=3, compile="on", ray_address="head:6379", actor_cpus=2.0, learner_cpus=4.0)
    make_run(tmp_path, seed=4, num_workers=2, num_learners=2, actor_gpus=0.5, cores=["rdn"], seeds=5)
    comparison, _ = compared(tmp_path)
    assert comparison.series == ["rdn"] and len(comparison.cells["gopher", "rdn"]) == 4


def test_an_option_that_only_another_version_knows_may_matter(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path, seed=seed, momentum=seed / 2)
    assert compared(tmp_path)[0].series == ["rdn · momentum 0.5", "rdn · momentum 1.0"]


def test_a_run_without_another_versions_option_is_no_seed_of_one_with_it(tmp_path: Path) -> None:
    make_run(tmp_path, seed=1, momentum=0.5)
    make_run(tmp_path, seed=2)
    assert compared(tmp_path)[0].series == ["rdn", "rdn · momentum 0.5"]


def test_auto_is_compared_as_what_it_came_to(tmp_path: Path) -> None:
    def say(run: Path, **auto: str) -> None:
        content = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(content | {"auto": auto}))

    say(make_run(tmp_path, seed=1, precision="auto"), precision="fp32")
    make_run(tmp_path, seed=2, precision="fp32")
    make_run(tmp_path, seed=3, precision="auto")  # of an earlier version, which did not say
    assert compared(tmp_path)[0].series == ["rdn"]
    say(make_run(tmp_path, seed=4, precision="auto"), precision="bf16")
    assert "rdn · precision bf16" in compared(tmp_path)[0].series
    remove_checkpoints(run := make_run(tmp_path, seed=5, stem="auto"))
    say(run, stem="nature")
    (found, *_), _ = read(run)
    assert found.settings["stem"] == "nature"


def test_the_command_for_a_missing_score_can_be_given(tmp_path: Path) -> None:
    varied, other = "paper-code+stack1+flicker0.5", "paper-code+stack1+flicker0.1234567+blink0.25"
    make_run(tmp_path, "pong", seed=1, protocol=varied, scores=[1])
    make_run(tmp_path, "pong", seed=2, protocol=varied)
    (line,) = compared(tmp_path)[1].left_out
    options = parse(shlex.split(line.split("`")[1])[1:])
    spec = AgentSpec((1, 84, 84), 6, "rdn", "nature", game="pong", protocol=varied)
    assert isinstance(options, EvalConfig)
    assert choose_protocol(spec, options.protocol, options.flicker, options.blink) == varied
    add_evaluation(tmp_path / "pong" / "rdn" / "seed-1", 1, other, time="2026-02-01", step=400_000)
    make_run(tmp_path, "pong", seed=3, protocol=varied)
    add_evaluation(tmp_path / "pong" / "rdn" / "seed-3", 1, other, time="2026-02-01")
    line, *_ = compared(tmp_path)[1].left_out
    options = parse(shlex.split(line.split("`")[1])[1:])
    assert isinstance(options, EvalConfig)
    assert choose_protocol(spec, options.protocol, options.flicker, options.blink) == other


def test_state_resets_are_averaged_only_where_evaluated_alike(tmp_path: Path) -> None:
    def with_resets(run: Path, score: float, protocol: str, greedy: bool) -> None:
        path = add_evaluation(run, score, protocol, greedy=greedy, time="2026-03-01")
        content = json.loads(path.read_text())
        content["results"]["forgets every 4"] = content["results"]["trained"]
        path.write_text(json.dumps(content))

    for seed in (1, 2):
        with_resets(make_run(tmp_path, seed=seed), 10.0, "paper-code", True)
    with_resets(make_run(tmp_path, seed=3), 90.0, "ale-standard", False)
    comparison, _ = compared(tmp_path)
    (section,) = forgetting(comparison, looks(comparison.core_of))
    assert [row[3:] for row in section.tables[0].rows] == [[30.0, 30.0, 30.0, 2]] * 2


def operate(run: Path, time: str, changes: dict[str, Any], step: int = 300_000, greedy: bool = True) -> Path:
    """Add an evaluation with operations on the memory, as `eval` writes it: mean and interval of each."""
    path = add_evaluation(run, 5.0, step=step, greedy=greedy, time=time)
    content = json.loads(path.read_text())
    trained = content["results"]["trained"]
    for name, change in changes.items():
        whole = {"mean": 100.0, "interval": None}  # of games: not what is shown
        paired = {"life": change and dict(zip(("mean", "interval"), change, strict=True)), "game": whole}
        content["results"][name] = {**trained, "difference": paired}
    content["results"]["random"] = trained
    path.write_text(json.dumps(content))
    return path


def test_what_operations_on_the_memory_change_is_tabulated_by_series(tmp_path: Path) -> None:
    rdn, _, other = (make_run(tmp_path, seed=seed) for seed in (1, 2, 3))
    lstm = make_run(tmp_path, core="lstm")
    comparison, _ = compared(tmp_path)
    assert operations(comparison) == []
    resets = {"forgets every 4": (-9.0, [-9.0, -9.0])}
    newest = operate(rdn, "2026-03-02", {"wipe@7": (-4.0, [-5.0, -3.0]), **resets})
    newest.rename(newest.with_name("a.json"))  # whatever its name is
    operate(rdn, "2026-03-01", {"wipe@7": (-1.0, None), "scale:0.5": (-0.25, [-1.0, 0.5])})
    operate(rdn, "2026-03-03", {"wipe@7": (-30.0, None)}, step=200_000)
    operate(rdn, "2026-03-04", {"undo@0": (-40.0, None)}, greedy=False)
    operate(other, "2026-03-01", {"wipe@7": (2.0, [1.0, 3.0]), "noise:1": None})
    operate(lstm, "2026-03-01", {"wipe@7": (0.5, None), "restore:6@7": (0.0, [0.0, 0.0])})
    comparison, _ = compared(tmp_path)
    (section,) = operations(comparison)
    assert "Where the whole interval is below 0, the operation costs something." in section.text[0]
    shown, numbers = section.tables
    assert numbers.name == "memory-operations" and numbers.csv_only and not shown.csv_only
    assert [list(row) for row in numbers.rows] == [
        ["gopher", "lstm", "wipe@7", 0.5, None, None, 1],
        ["gopher", "lstm", "restore:6@7", 0.0, 0.0, 0.0, 1],
        ["gopher", "rdn", "wipe@7", -1.0, -4.0, 2.0, 2],
        ["gopher", "rdn", "scale:0.5", -0.25, -1.0, 0.5, 1],
    ]
    assert shown.columns == ("game", "series", "wipe@7", "restore:6@7", "scale:0.5")
    assert [list(row) for row in shown.rows] == [
        ["gopher", "lstm", "0.50", "0", None],
        ["gopher", "rdn", "−1.00 [−4.00, 2.00]", None, "−0.25 [−1.00, 0.50]"],
    ]


def test_what_is_said_of_scores_is_of_those_shown(tmp_path: Path) -> None:
    path = make_run(tmp_path, scores=[5])
    add_evaluation(path, 7, greedy=False, count=50)
    assert not any("of the published ones" in line for line in differences(*compared(tmp_path)))
    other = make_run(tmp_path / "other", protocol="ale-standard")
    lines = differences(*compared(other))
    assert any(line.startswith("Training is under") for line in lines)
    assert not any(line.startswith("Evaluation is under") for line in lines)
    add_evaluation(other, 5, "ale-standard")
    (table,) = scores_section(*compared(other)).tables
    assert not any("published" in name for name in table.columns)


def test_a_score_of_an_older_agent_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path, seed=1)
    add_evaluation(path, 5, step=200_000)
    (line,) = older_scores(compared(tmp_path)[1])
    assert line.startswith(f"{path} is scored at step 200,000 of 300,000 trained; `deltabeast eval {path}")
    add_evaluation(make_run(tmp_path, seed=2), 5, step=200_000)
    assert older_scores(compared(tmp_path)[1])[0].startswith("2 runs are, such as ")
    for run in path.parent.iterdir():
        add_evaluation(run, 5, step=299_000)
    assert older_scores(compared(tmp_path)[1]) == []


def give_core_options(run: Path, options: dict[str, Any]) -> None:
    spec = run / "checkpoints" / f"{300_000:012d}" / "agent.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"core_options": options}))


def test_spaces_among_the_layers_of_a_hybrid_make_no_other_series(tmp_path: Path) -> None:
    for seed, layers in ((1, "kda:short_conv=4, gtrxl"), (2, "kda:short_conv=4,gtrxl")):
        give_core_options(make_run(tmp_path, core="hybrid", seed=seed), {"layers": layers})
    comparison, _ = compared(tmp_path)
    same = "layers kda:short_conv=4,gtrxl"
    assert [run.settings["core_options"] for run in comparison.runs()] == [same, same]


def test_options_at_their_defaults_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a core from outside, whose code a comparison does not load, all are."""
    (tmp_path / "core_from_outside.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for seed, given in enumerate(({}, {"clock": 0, "num_heads": 4}, {"clock": 0, "from_later": 1})):
        give_core_options(make_run(tmp_path, core="rdn", seed=seed), given)
    give_core_options(make_run(tmp_path, core="core_from_outside:Mine", seed=3), {"clock": 0})
    comparison, _ = compared(tmp_path)
    options = [run.settings["core_options"] for run in comparison.runs()]
    assert options == ["default", "default", "from_later 1", "clock 0"]
    assert [run.core_options for run in comparison.runs()] == [{}, {}, {"from_later": 1}, {"clock": 0}]
    assert "core_from_outside" not in sys.modules


def test_true_is_1_as_it_was_before_core_options_had_types(tmp_path: Path) -> None:
    for seed, options in enumerate(({"output_gate": 1}, {"output_gate": True}, {"output_gate": False}), 1):
        path = make_run(tmp_path, core="gated_feedforward", seed=seed)
        give_core_options(path, options)
    comparison, _ = compared(tmp_path)
    assert comparison.series == ["gated_feedforward", "gated_feedforward · output_gate 1"]


def test_a_core_without_options_has_its_own_name_beside_one_with_some(tmp_path: Path) -> None:
    for seed, options in enumerate(({}, {}, {"num_layers": 1}), 1):
        path = make_run(tmp_path, core="rdn", seed=seed)
        give_core_options(path, options)
    comparison, _ = compared(tmp_path)
    assert comparison.series == ["rdn", "rdn · num_layers 1"]
    assert [len(comparison.cells["gopher", label]) for label in comparison.series] == [2, 1]


def test_an_imported_agent_is_no_seed_of_ours(tmp_path: Path) -> None:
    make_run(tmp_path, seed=1, scores=[1])
    theirs = make_run(tmp_path, seed=2, scores=[100])
    (theirs / "imported.json").write_text("{}")
    _, board = compared(tmp_path)
    assert values(board) == {
        ("gopher", "rdn · origin deltabeast"): [1],
        ("gopher", "rdn · origin elsewhere"): [100],
    }


def test_settings_that_differ_between_games_alone_do_not_split(tmp_path: Path) -> None:
    make_run(tmp_path, "gopher", steps="300k")
    make_run(tmp_path, "pong", steps="600k")
    comparison, _ = compared(tmp_path)
    assert comparison.series == ["rdn"] and comparison.games == ["gopher", "pong"]
    assert any("Runs of different games differ in steps" in note for note in comparison.notes)


def test_a_seed_counts_once(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", scores=[1])
    again = make_run(tmp_path / "b", scores=[2])
    comparison, board = compared(tmp_path)
    assert values(board) == {("gopher", "rdn"): [1]}
    assert f"{again}: left out, it repeats seed 1 of {first}" in comparison.left_out


def coded(run: Path, commit: str | None, version: str = "0.2.0") -> None:
    config = json.loads((run / "config.json").read_text())
    config["versions"] = {"commit": commit, "deltabeast": version}
    (run / "config.json").write_text(json.dumps(config))


def test_a_seed_again_with_other_code_is_a_series_of_its_own(tmp_path: Path) -> None:
    """With all runs of that code; what repeats no seed is averaged, but for edited code."""
    for seed, commit in ((1, "abc"), (2, "abc"), (3, "def")):
        coded(make_run(tmp_path / "a", seed=seed, scores=[1]), commit)
        coded(make_run(tmp_path / "a", "pong", seed=seed, scores=[2]), commit)
    for seed in (1, 4):
        coded(make_run(tmp_path / "b", seed=seed, scores=[3]), "fed")
    again = make_run(tmp_path / "c", scores=[4])
    coded(again, "fed")
    coded(make_run(tmp_path / "d", seed=5, scores=[5]), "abc-dirty-123456")
    comparison, board = compared(tmp_path)
    assert values(board) == {
        ("gopher", "rdn"): [1, 1, 1],
        ("gopher", "rdn · code abc-dirty-123456"): [5],
        ("gopher", "rdn · code fed"): [3, 3],
        ("pong", "rdn"): [2, 2, 2],
    }
    _, board = compared(tmp_path / "d")
    assert values(board) == {("gopher", "rdn"): [5]}, "there is no other code"
    (line,) = comparison.left_out
    assert line.startswith(f"{again}: left out, it repeats seed 1 of {tmp_path / 'b'}")


def test_code_of_which_no_commit_is_known_has_its_version_or_is_no_other(tmp_path: Path) -> None:
    coded(make_run(tmp_path / "a", scores=[1]), None)
    coded(make_run(tmp_path / "b", scores=[2]), None, "0.3.0")
    config = make_run(tmp_path / "c", scores=[3]) / "config.json"
    config.write_text(config.read_text().replace('"commit": "abc", ', ""))
    comparison, board = compared(tmp_path)
    assert values(board) == {("gopher", "rdn"): [1], ("gopher", "rdn · code 0.3.0"): [2]}
    assert len(comparison.left_out) == 1 and "c/gopher" in comparison.left_out[0]


def test_a_copy_of_a_run_is_left_out_and_one_with_another_log_is_not(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a")
    copy = shutil.copytree(first, tmp_path / "b" / "seed-1")
    other = make_run(tmp_path / "c", curve=((100_000, 101.0, 1.0), (300_000, 300.0, 2.0)))
    runs, probes, problems = read_runs([str(tmp_path)])
    assert [run.path for run in runs] == [first, other] and not probes
    assert problems == [f"{copy}: left out; it is {first} again, of the same seed"]


def test_one_seed_is_said(tmp_path: Path) -> None:
    make_run(tmp_path, scores=[1])
    comparison, board = compared(tmp_path)
    assert any("One seed only" in note and "rdn on gopher" in note for note in comparison.notes)
    assert any("one seed" in note for note in Aggregation(comparison, board).notes)


def test_without_evaluations_finished_training_is_the_score(tmp_path: Path) -> None:
    make_run(tmp_path, seed=1, curve=[(150_000, 1, 5), (300_352, 2, 8)])
    going = make_run(tmp_path, seed=2, curve=[(100_000, 1, 5)])
    _, board = compared(tmp_path)
    assert values(board) == {("gopher", "rdn"): [8]} and not board.evaluated  # the life return: a third of 24
    assert f"{going}: at step 100,000 of 300,000" in board.left_out[0]
    (score,) = board.cells["gopher", "rdn"]
    assert score.normalized == pytest.approx((24 - 257.6) / (2412.5 - 257.6))


def tabulated(comparison: Comparison, board: ScoreBoard) -> list[dict[str, Any]]:
    (table,) = scores_section(comparison, board).tables
    return [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]


def test_whole_games_stand_beside_lives_alone(tmp_path: Path) -> None:
    """Of evaluations or training, beside an environment without lives too; not where an episode is a game."""
    make_run(tmp_path / "trained")
    add_evaluation(make_run(tmp_path / "scored"), 7)
    whole = make_run(tmp_path / "whole", protocol="ale-standard")
    add_evaluation(whole, 7, protocol="ale-standard")
    for folder, expected in (("trained", 9), ("scored", 21)):
        assert [row["whole game"] for row in tabulated(*compared(tmp_path / folder))] == [expected]
    assert "whole game" not in tabulated(*compared(tmp_path / "whole"))[0]
    other = make_run(tmp_path / "scored", "popgym:popgym-Some-v0", protocol=None, env=True)
    add_evaluation(other, 7, protocol=None)
    assert [row["whole game"] for row in tabulated(*compared(tmp_path / "scored"))] == [21, None]


def test_human_normalised_scores_are_of_whole_games(tmp_path: Path) -> None:
    make_run(tmp_path, scores=[1000])
    comparison, board = compared(tmp_path)
    (score,) = board.cells["gopher", "rdn"]
    (row,) = tabulated(comparison, board)
    assert row["mean"] == 1000 and row["whole game"] == 3000 and row["normalised"] == score.normalized
    game = game_info("gopher")
    assert score.value == 1000 and board.kind == "life return"
    assert game.random is not None and game.human is not None
    assert score.normalized == pytest.approx((3000 - game.random) / (game.human - game.random))


def test_aggregates_are_over_the_games_that_all_series_share(tmp_path: Path) -> None:
    for game in ("gopher", "pong", "adventure"):  # no human score is known of Adventure
        make_run(tmp_path, game, "rdn", scores=[1])
        if game != "pong":
            make_run(tmp_path, game, "lstm", scores=[2])
    over = Aggregation(*compared(tmp_path))
    assert over.games == ["gopher"] and over.shared == ["adventure", "gopher"] and over.normalized
    assert any("Without pong: not every series" in note for note in over.notes)
    assert any("Without adventure: no score of a human" in note for note in over.notes)


def test_environments_without_a_protocol_are_compared_in_their_own_unit(tmp_path: Path) -> None:
    env = "popgym:popgym-StatelessCartPoleEasy-v0"
    for core in ("lstm", "rdn"):
        for seed in (1, 2):
            make_run(tmp_path, env, core, seed, protocol=None, scores=[seed / 4], env=True)
    comparison, board = compared(tmp_path)
    over = Aggregation(comparison, board)
    assert over.games == [env] and not over.normalized and over.unit == "return"
    assert [game.tolist() for game in over.of("rdn")] == [[0.25, 0.5]]
    (line,) = differences(comparison, board)
    assert line.startswith("StatelessCartPoleEasy-v0: not among the published games")


DELAY, HOLD = (f"popgym:popgym-Repeat{which}Easy-v0" for which in ("Previous", "First"))


def test_tasks_of_memory_are_aggregated_between_random_play_and_the_best(tmp_path: Path) -> None:
    for env, scores in {DELAY: (0, 1 / 3), HOLD: (1 / 6, -1 / 6), "CartPole-v1": (5, 5)}.items():
        for core, score in zip(("lstm", "rdn"), scores, strict=True):
            for seed in (1, 2):
                make_run(tmp_path, env, core, seed, protocol=None, scores=[score], env=True)
    over = Aggregation(*compared(tmp_path))
    assert over.games == [HOLD, DELAY] and over.unit == "task-normalised score"
    # -0.5 is random play there and 1 the best; a game's return is three times what these scores are
    for core, hold, delay in (("lstm", 2 / 3, 1 / 3), ("rdn", 0, 1)):
        assert [game.tolist() for game in over.of(core)] == [pytest.approx([x] * 2) for x in (hold, delay)]
    assert any("Without CartPole-v1: no range of returns" in note for note in over.notes)
    make_run(tmp_path, "gopher", "lstm", scores=[1])
    make_run(tmp_path, "gopher", "rdn", scores=[1])
    over = Aggregation(*compared(tmp_path))
    assert over.games == ["gopher"] and over.unit == "human-normalised score"  # never mixed


def test_abilities_have_the_mean_of_their_seeds_and_the_best_is_bold(tmp_path: Path) -> None:
    for seed, score in enumerate((-1 / 6, 0, 1 / 6), 1):
        make_run(tmp_path, DELAY, "lstm", seed, protocol=None, scores=[score], env=True)
    make_run(tmp_path, DELAY, "rdn", protocol=None, scores=[1 / 3], env=True)
    comparison, board = compared(tmp_path)
    style = looks(comparison.core_of)
    assert abilities(comparison, board, style) == []  # of one task the scores say it all
    make_run(tmp_path, HOLD, "lstm", protocol=None, scores=[-1 / 3], env=True)
    comparison, board = compared(tmp_path)
    (section,) = abilities(comparison, board, style)
    table, numbers = section.tables
    assert table.columns == ("series", "delay", "hold")
    assert table.rows == [["lstm", "0.33 [0, 0.67]", "−0.33"], ["rdn", "1.00", None]]
    assert table.bold == {(0, 2), (1, 1)}
    assert table.note.endswith("; hold: say at every step what was seen at the first (RepeatFirstEasy-v0).")
    assert numbers.to_csv().splitlines() == [
        "ability,task,series,mean,low,high",
        "delay,RepeatPreviousEasy-v0,lstm,0.33333333,0,0.66666667",
        "delay,RepeatPreviousEasy-v0,rdn,1,1,1",
        "hold,RepeatFirstEasy-v0,lstm,-0.33333333,-0.33333333,-0.33333333",
    ]


def test_every_difference_from_the_published_numbers_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, "amidar", protocol="ale-standard", bptt="full", stem="residual", batch_size=8)
    add_evaluation(run, 5, protocol="ale-standard", count=20)
    comparison, board = compared(tmp_path)
    text = "\n".join(differences(comparison, board))
    for part in (
        "Evaluation is under ale-standard", "Training is under ale-standard",
        "sticky actions with probability 0.25",
        "all 18 actions: yes (published: no)", "a life ends the episode: no (published: yes)",
        "FIRE is pressed for the agent: no", "after 108,000 frames (published: 400,000)", "no-op frames",
        "bptt full (published: per_step)", "batch size 8 (published: 32)",
        "steps 300,000 (published: 200,000,000)",
        "Episodes of our evaluations: 20; of the published ones 150",
        "amidar: our agents have all", "1 training seed",
        "rmsprop corrected True (published: False)", "but count as agent steps",
    ):  # fmt: skip
        assert part in text, part
    assert "unroll length" not in text  # it is the published one


def test_agents_with_the_published_six_actions_are_a_series_without_that_difference(tmp_path: Path) -> None:
    for seed, num_actions in ((1, None), (2, 6)):
        make_run(tmp_path / str(seed), "amidar", seed=seed, num_actions=num_actions)
        comparison, board = compared(tmp_path / str(seed))
        text = "\n".join(differences(comparison, board))
        assert ("amidar: our agents have all" in text) == (num_actions is None)
    comparison, _ = compared(tmp_path)
    assert len(comparison.cells) == 2


def test_conclusions_from_few_seeds_say_so(tmp_path: Path) -> None:
    for seed in (1, 2):
        for core, factor in (("lstm", 1), ("rdn", 2)):
            make_run(tmp_path, "gopher", core, seed, scores=[10.0 * factor + seed])
    ranked, text = conclusions(*compared(tmp_path))
    assert "rdn" in ranked and text.startswith("A run of rdn scores higher than one of lstm with probability")
    assert "once in 3 times" in text  # 2 and 2 of 4 in 6 ways, of which 2 are as far apart
    for seed in (3, 4):
        for core, factor in (("lstm", 1), ("rdn", 2)):
            make_run(tmp_path, "gopher", core, seed, scores=[10.0 * factor + seed])
    assert not any("times" in line for line in conclusions(*compared(tmp_path)))
    # A game with one seed is named, and who is better is said of the others.
    make_run(tmp_path, "pong", "lstm", 1, scores=[1.0])
    make_run(tmp_path, "pong", "rdn", 1, scores=[-1.0])
    _, single, text = conclusions(*compared(tmp_path))
    assert "one seed of a core on pong nothing follows" in single
    assert "rdn scores higher than one of lstm on gopher with probability 1" in text


def test_the_best_stands_beside_the_next_and_the_best_without_memory(tmp_path: Path) -> None:
    for seed in (1, 2):
        for core, score in (("rdn", 40), ("lstm", 30), ("gru", 20), ("feedforward", 10)):
            make_run(tmp_path, "gopher", core, seed, scores=[score + seed])
        make_run(tmp_path, "gopher", "gated_feedforward", seed, scores=[seed])
    _, next_best, without = conclusions(*compared(tmp_path))
    assert next_best.startswith("A run of rdn scores higher than one of lstm with probability 1")
    assert without.startswith("A run of rdn scores higher than one of feedforward with probability 1")
    # Where the next, or the best, is the best without memory, nobody is named twice.
    for best, following in (("rdn", "feedforward"), ("feedforward", "rdn")):
        for seed in (1, 2):
            for core, score in ((best, 40), (following, 30), ("gated_feedforward", 20)):
                make_run(tmp_path / best, "gopher", core, seed, scores=[score + seed])
        _, only = conclusions(*compared(tmp_path / best))
        assert f"A run of {best} scores higher than one of {following} with" in only
    # A convolution over the last steps is a memory.
    for seed in (1, 2):
        convolved = make_run(tmp_path / "conv", "gopher", "feedforward", seed, scores=[20 + seed])
        give_core_options(convolved, {"short_conv": 4})
        make_run(tmp_path / "conv", "gopher", "rdn", seed, scores=[40 + seed])
        make_run(tmp_path / "conv", "gopher", "lstm", seed, scores=[30 + seed])
    assert len(conclusions(*compared(tmp_path / "conv"))) == 2


def test_series_that_are_shown_alike_are_first_alike(tmp_path: Path) -> None:
    for core, score in (("lstm", 10.001), ("rdn", 10.0), ("gru", 9.9)):
        make_run(tmp_path, "gopher", core, 1, scores=[score])
    comparison, board = compared(tmp_path)
    (table,) = scores_section(comparison, board).tables
    assert {table.rows[row][1] for row, _ in table.bold} == {"lstm", "rdn"}


def test_only_what_is_shown_of_the_publication_is_explained(tmp_path: Path) -> None:
    make_run(tmp_path, "amidar", scores=[5.0])
    section = published_differences(*compared(tmp_path))
    assert any("Amidar's and James Bond's" in point for point in section.points)
    assert not any("Battlezone" in point for point in section.points)
    make_run(tmp_path / "other", "amidar", protocol="paper-code+stack1", scores=[5.0])
    section = published_differences(*compared(tmp_path / "other"))
    assert section.points and not any(point.startswith("Published:") for point in section.points)


def test_what_is_as_published_is_not_named_as_a_difference(tmp_path: Path) -> None:
    published = {"bptt": "per_step", "precision": "fp32", "num_actors": 48, "num_envs": 1, "steps": "200M",
                 "rmsprop_corrected": False}  # fmt: skip
    run = make_run(tmp_path, **published)  # type: ignore[arg-type]
    config = json.loads((run / "checkpoints" / f"{300_000:012d}" / "agent.json").read_text())
    add_evaluation(run, 5, step=200_000_000)
    comparison, board = compared(tmp_path)
    text = "\n".join(differences(comparison, board))
    assert "Evaluation" not in text and "Training is" not in text and "150" not in text
    assert f"Training differs in: stem {config['stem']} (published: residual)." in text


def test_environments_of_one_name_in_two_modules_are_two(tmp_path: Path) -> None:
    envs = ("mine:Box", "yours:Box", "a/Box-v0", "b/Box-v0", "popgym:popgym-Box-v0", "deltabeast/Box-v0")
    assert len({name_of(env) for env in envs}) == len({file_name(env) for env in envs}) == len(envs) - 1
    assert name_of("mine:Box") == "mine:Box" and name_of("popgym:popgym-Box-v0") == "Box-v0"


def test_a_run_that_never_trained_is_not_to_be_evaluated(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    remove_log(run)
    (checkpoint,) = run.glob("checkpoints/*")
    checkpoint.rename(checkpoint.with_name("0" * 12))
    _, (line,) = read(tmp_path)
    assert line.endswith("it has no evaluation; nor has it trained yet")
