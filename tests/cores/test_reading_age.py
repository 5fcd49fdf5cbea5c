"""How old what is read is, against sums over the shares of each reading."""

from __future__ import annotations

import math

import pytest
import torch
from fastweight_helpers import make_reset
from torch import Tensor

from deltabeast.cores import make_core
from deltabeast.cores.linear_form import DeltaForm, LinearForm, Writes
from deltabeast.cores.provenance import fractions, linear_forms, shares
from deltabeast.cores.reading_age import median_age, reading_ages, share_beyond

T, B = 9, 2


def forms_of(core: str, reset: Tensor, **options: int) -> list[LinearForm]:
    made = make_core(core, 7, num_layers=2, hidden_size=12, num_heads=3, ff_size=8, **options).double()
    x = torch.randn(len(reset), B, 7, dtype=torch.float64)
    state = tuple(torch.rand_like(part.double()) for part in made.initial_state(B))
    found = [form for form in linear_forms(made, x, state, reset) if form is not None]
    assert len(found) == 2
    return found


def written_out(forms: list[LinearForm], first: int) -> list[float]:
    """Sum sizes reading by reading."""
    by_age, count = [0.0] * (T + 1), 0
    for form in forms:
        for t in range(first, T):
            found = fractions(shares(form, t), over_heads=True)
            for b in range(B):
                sizes = [abs(float(x)) for x in (*found.steps[:, b], found.initial[b])]
                for j, size in enumerate(sizes[:-1]):
                    by_age[t - j] += size / sum(sizes)
                by_age[T] += sizes[-1] / sum(sizes)
                count += 1
    return [each / count for each in by_age]


@pytest.mark.parametrize("core", ["rdn", "delta_product", "momentum_delta_net", "transformer"])
@pytest.mark.parametrize(
    ("pattern", "first"), [("none", 0), ("random", 0), ("first", 5), ("last", 8), ("none", 8)]
)
def test_ages_are_those_of_the_shares(core: str, pattern: str, first: int, seed: int) -> None:
    forms = forms_of(core, make_reset(pattern, T, B))
    by_age = reading_ages(forms, first)
    expected = torch.tensor(written_out(forms, first), dtype=torch.float64)
    torch.testing.assert_close(by_age, expected, rtol=1e-9, atol=1e-12)
    assert float(by_age.sum()) == pytest.approx(1)
    if pattern != "random":
        assert (float(by_age[T]) > 0) == (pattern == "none")


def test_a_key_that_was_written_three_steps_before(seed: int) -> None:
    """Each step writes under a key of its own, and reads that of three steps before."""
    eye = torch.eye(T).view(T, 1, 1, T)
    k, u = eye.unsqueeze(3), torch.randn(T, 1, 1, 1, 4)
    nothing, decay = torch.zeros_like(k), torch.ones_like(k)
    read = torch.cat([eye[:3], eye[:-3]])
    form = DeltaForm(
        Writes(read, k, u, nothing, decay), torch.zeros(1, 1, 4, T), torch.zeros(T, 1, dtype=bool)
    )
    by_age = reading_ages([form], 3)
    assert by_age.tolist() == pytest.approx([0, 0, 0, 1, *[0] * (T - 3)])
    assert median_age(by_age) == 3
    assert (share_beyond(by_age, 2), share_beyond(by_age, 3)) == (pytest.approx(1), 0)


def test_what_reads_nothing_does_not_count(seed: int) -> None:
    (form, other) = forms_of("delta_net", make_reset("first", T, B))
    assert isinstance(form, DeltaForm)
    q = form.writes.q.clone()
    q[4:, 0] = 0
    silent = form._replace(writes=form.writes._replace(q=q))
    seen = [reading_ages([each], t) for each, t in ((silent, 4), (other, 4))]
    counts = torch.tensor([T - 4, 2 * (T - 4)], dtype=torch.float64)
    expected = (seen[0] * counts[0] + seen[1] * counts[1]) / counts.sum()
    torch.testing.assert_close(reading_ages([silent, other], 4), expected)
    q[:] = 0
    assert math.isnan(median_age(reading_ages([form._replace(writes=form.writes._replace(q=q))])))


def test_medians_and_parts() -> None:
    by_age = torch.tensor([0.1, 0.2, 0.25, 0.05, 0.4])
    assert median_age(by_age) == 2
    assert median_age(torch.tensor([0.1, 0.2, 0.0, 0.7])) == 3
    assert share_beyond(by_age, 0) == pytest.approx(0.9)
    assert share_beyond(by_age, 3) == pytest.approx(0.4)
    assert share_beyond(by_age, 4) == 0


def test_a_step_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"step is 9; the unroll has steps 0 to 8"):
        reading_ages(forms_of("delta_net", make_reset("none", T, B)), T)
