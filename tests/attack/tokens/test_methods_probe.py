"""`Probe`: the candidate before any gradient, the ranking by positions, steps along new gradients."""

from __future__ import annotations

import pytest
import torch

from howsmooth.attack.tokens import KL, Cosine, Edit, EditLimits, Flip, HotFlip, Probe, attack_text
from howsmooth.attack.tokens.methods import follow_gradient, ranked_edits

from ...tolerances import assert_close
from .conftest import NEVER, TEXT, problem_of


@pytest.mark.parametrize("edits", [1, 2])
def test_a_failed_probe_costs_one_call(decoder, edits):
    """First order is accurate for these models: `Probe` flips what HotFlip flips, at most one call later."""
    words = TEXT.split()
    hotflip, probe = (
        [
            attack_text(decoder, " ".join(words[i:]), method, limits=EditLimits(edits=edits), calls=20, seed=i)
            for i in range(5)
        ]
        for method in (HotFlip(), Probe())
    )
    flipped = [(one, other) for one, other in zip(hotflip, probe, strict=True) if one.success]
    assert len(flipped) >= 4
    assert all(other.success and other.calls <= one.calls + 1 for one, other in flipped)


@pytest.mark.parametrize("allow", [("substitute", "insert"), ("insert", "duplicate"), ("duplicate",)])
@pytest.mark.parametrize("edits", [1, 2])
def test_a_probe_is_the_second_call(decoder, allow, edits):
    """It makes all edits of the budget nearest to the end, of an allowed kind, before any backward pass."""
    problem = problem_of(decoder, Flip(threshold=-1e9), TEXT, edits=edits, allow=allow)  # every candidate succeeds
    Probe()(problem, seed=0)
    assert (problem.forwards, problem.backwards) == (2, 0)
    assert sorted(edit.position for edit in problem.best.edits) == problem.search_space.positions[-edits:]
    assert {edit.operation for edit in problem.best.edits} == {allow[0]}


@pytest.mark.parametrize("objective", [KL(), Cosine()], ids=lambda o: o.name)
def test_probes_are_only_for_next_token_objectives(decoder, objective):
    probed = Probe._probe
    problem, seen = problem_of(decoder, objective, TEXT, calls=8), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "_probe", staticmethod(lambda *args: seen.append(args) or probed(*args)))
        Probe()(problem, seed=0)
    assert bool(seen) == objective.uses_last_token


def test_ranking_visits_every_position_before_it_repeats_one(decoder):
    """The position of a failed probe is damped like a second token."""
    problem = problem_of(decoder, Flip(), TEXT, allow=("substitute",))
    gradient = problem.gradient(problem.original)
    ranked = ranked_edits(problem, (), gradient)
    first = {edit.position: rank for rank, edit in reversed(list(enumerate(ranked)))}
    top = ranked[0].position
    later = ranked_edits(problem, (), gradient, tried={top})
    assert [edit for edit in later if edit.position != top] == [edit for edit in ranked if edit.position != top]
    assert [edit.position for edit in later].index(top) > first[top]
    assert [edit.position for edit in ranked[:4]] == sorted(first, key=first.__getitem__)[:4]
    assert not any(edit.position == top for edit in ranked_edits(problem, (ranked[0],), gradient))


def test_gradients_after_an_insertion_are_aligned_with_the_original(decoder):
    """Insertions shift the rows of the next gradient; `follow_gradient` aligns them with the original's tokens."""
    problem, seen = problem_of(decoder, Flip(threshold=NEVER), TEXT, edits=2), []
    first = (Edit(4, "insert", 41),)
    follow_gradient(
        problem, first, lambda edits, gradient: seen.append(gradient) or [Edit(9, "substitute", 60)], seed=0
    )
    whole = problem.gradient(problem.forward(first))
    assert_close(seen[0], torch.cat([whole[:4], whole[5:]]), 1e-6)
    assert problem.best is not None and problem.calls_left > 0
