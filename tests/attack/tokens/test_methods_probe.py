"""`Probe`: the trial before any slope, the ranking by places behind it, steps along new slopes."""

from __future__ import annotations

import pytest
import torch

from howsmooth.attack.tokens import KL, Cosine, Edit, Flip, HotFlip, Limits, Probe, attack_text
from howsmooth.attack.tokens.methods import follow, ranked_edits

from ...tolerances import assert_close
from .conftest import NEVER, TEXT, problem_of


@pytest.mark.parametrize("edits", [1, 2])
def test_a_probe_in_vain_costs_one_call(decoder, edits):
    """On these seeded models, which first order knows well: what HotFlip's rule flips goes one call later at most."""
    words = TEXT.split()
    hotflip, probe = (
        [
            attack_text(decoder, " ".join(words[i:]), method, limits=Limits(edits=edits), calls=20, seed=i)
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
    """All edits of the budget, nearest to the end, of a kind that is allowed, and before any backward pass."""
    problem = problem_of(decoder, Flip(threshold=-1e9), TEXT, edits=edits, allow=allow)  # whatever is tried succeeds
    Probe()(problem, seed=0)
    assert (problem.forwards, problem.backwards) == (2, 0)
    assert sorted(edit.position for edit in problem.best.edits) == problem.room.places[-edits:]
    assert {edit.kind for edit in problem.best.edits} == {allow[0]}


@pytest.mark.parametrize("objective", [KL(), Cosine()], ids=lambda o: o.name)
def test_probes_are_for_what_the_end_decides(decoder, objective):
    probed = Probe._probe
    problem, seen = problem_of(decoder, objective, TEXT, calls=8), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "_probe", staticmethod(lambda *args: seen.append(args) or probed(*args)))
        Probe()(problem, seed=0)
    assert bool(seen) == objective.last_only


def test_every_place_once_before_any_place_again(decoder):
    """The ranking along a slope; the place of a probe in vain is damped like a second token."""
    problem = problem_of(decoder, Flip(), TEXT, allow=("substitute",))
    slope = problem.slope(problem.original)
    ranked = ranked_edits(problem, (), slope)
    first = {edit.position: rank for rank, edit in reversed(list(enumerate(ranked)))}
    top = ranked[0].position
    later = ranked_edits(problem, (), slope, tried={top})
    assert [edit for edit in later if edit.position != top] == [edit for edit in ranked if edit.position != top]
    assert [edit.position for edit in later].index(top) > first[top]
    assert [edit.position for edit in ranked[:4]] == sorted(first, key=first.__getitem__)[:4]
    assert not any(edit.position == top for edit in ranked_edits(problem, (ranked[0],), slope))


def test_a_step_after_an_insertion_takes_the_slope_of_its_own_token(decoder):
    """Edits that change the number of tokens shift the rows of the next slope; `follow` hands them back in place."""
    problem, seen = problem_of(decoder, Flip(threshold=NEVER), TEXT, edits=2), []
    first = (Edit(4, "insert", 41),)
    follow(problem, first, lambda edits, slope: seen.append(slope) or [Edit(9, "substitute", 60)], seed=0)
    whole = problem.slope(problem.forward(first))
    assert_close(seen[0], torch.cat([whole[:4], whole[5:]]), 1e-6)
    assert problem.best is not None and problem.left > 0
