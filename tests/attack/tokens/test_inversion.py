"""First-order scores and the inversion of directions against dense float64 truths."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth import InputError
from howsmooth.attack.tokens import Edit, Flip, Hidden, Limits, TextProblem, captured_share, invert
from howsmooth.attack.tokens.attack import whole_chunk
from howsmooth.attack.tokens.edits import Room
from howsmooth.attack.tokens.inversion import realised
from howsmooth.attack.tokens.methods import best_substitutions, open_scores, substitution_scores

from ...tolerances import FLOAT32, assert_close, close
from .conftest import SMALL_TEXT, TEXT


def problem_of(victim, text=TEXT, objective=None, **limits) -> TextProblem:
    return TextProblem(victim, whole_chunk(victim.model, text), objective or Flip(), Limits(**limits), calls=10_000)


def test_scores_are_dense_directional_derivatives(decoder):
    """⟨g_i, e_v − e_i⟩ against forward mode along e_v − e_i, for every token at every place."""
    problem = problem_of(decoder)
    slope = problem.slope(problem.original)
    scores = substitution_scores(slope, decoder.embedding.matrix, problem.ids)
    vectors = decoder.embedding.matrix[problem.ids][None]
    where = torch.arange(len(problem.ids))[None]

    def value(x):
        return Flip().value(Flip().features(decoder.embedding, x), problem.reference, where).sum()

    for place, token in itertools.product((0, 3, len(problem.ids) - 1), (7, 200, 599)):
        tangent = torch.zeros_like(vectors)
        tangent[0, place] = decoder.embedding.matrix[token] - vectors[0, place]
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            derivative = torch.func.jvp(value, (vectors,), (tangent,))[1]
        assert_close(scores[place, token], derivative, FLOAT32)  # Llama's norms are in float32 whatever the weights are


def test_ranking_takes_the_largest_of_what_may_be_written(decoder):
    problem = problem_of(decoder)
    places = torch.tensor(problem.room.places)
    scores = open_scores(problem.slope(problem.original), problem.ids, problem.room, places)
    first, second = best_substitutions(scores, places, 2)
    order = scores.flatten().sort(descending=True)
    assert close(scores[problem.room.places.index(first.position), first.token], order.values[0])
    assert close(scores[problem.room.places.index(second.position), second.token], order.values[1])
    assert first.token != problem.ids[first.position]


@pytest.mark.parametrize("seed", range(3))
def test_share_is_that_of_least_squares(seed):
    generator = torch.Generator().manual_seed(seed)
    u, change = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    if (u * change).sum() < 0:
        change = -change
    fit = torch.linalg.lstsq(change.reshape(-1, 1), u.reshape(-1, 1))
    missed = (u.reshape(-1, 1) - change.reshape(-1, 1) @ fit.solution).square().sum() / u.square().sum()
    assert captured_share(u, change) == pytest.approx(1 - float(missed), rel=1e-12)
    assert captured_share(u, -change) == 0.0  # exact: cut off at zero


def test_one_token_is_the_nearest_of_all(victim):
    """Every place, every token that may be written: the best share by brute force."""
    ids = whole_chunk(victim.model, TEXT).ids[:6]
    places = [1, 2, 4]
    writable = torch.zeros_like(victim.writable)
    writable[20:50] = True
    room = Room(places, writable & victim.writable, victim.embedding.matrix)
    direction = torch.randn(6, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = invert(victim.embedding, ids, direction, room)
    tokens = torch.where(room.writable)[0].tolist()
    shares = {
        (p, t): captured_share(direction, realised(victim.embedding, ids, (Edit(p, "substitute", t),)))
        for p in places
        for t in tokens
        if t != ids[p]
    }
    assert found.share == pytest.approx(max(shares.values()), rel=1e-10)
    assert close(found.error, 1 - found.share) and 0 < found.share < 1


def test_two_tokens_capture_what_brute_force_over_all_pairs_does(small):
    ids, places = whole_chunk(small.model, SMALL_TEXT).ids, [1, 3, 6]
    room = Room(places, small.writable, small.embedding.matrix)
    tokens = torch.where(small.writable)[0].tolist()
    singles = [(Edit(p, "substitute", t),) for p in places for t in tokens if t != ids[p]]
    sets = singles + [(*a, *b) for a, b in itertools.combinations(singles, 2) if a[0].position != b[0].position]
    changes = [realised(small.embedding, ids, edits) for edits in sets]
    more = 0
    for seed in range(8):
        direction = torch.randn(len(ids), 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        one, two = (invert(small.embedding, ids, direction, room, edits=k) for k in (1, 2))
        assert two.share == pytest.approx(max(captured_share(direction, change) for change in changes), rel=1e-9)
        more += two.share > one.share
    assert more >= 4  # else pairs were not put to the test


def test_a_change_that_tokens_make_is_found_again(victim):
    """Inverting the very change of a substitution gives that substitution, and all of the direction."""
    ids = whole_chunk(victim.model, TEXT).ids
    token = int(torch.where(victim.writable)[0][40])
    edit = Edit(3, "substitute", token)
    room = Room(list(range(1, len(ids) - 1)), victim.writable, victim.embedding.matrix)
    found = invert(victim.embedding, ids, 0.01 * realised(victim.embedding, ids, (edit,)), room)
    assert found.edits == (edit,) and found.share == pytest.approx(1, rel=1e-9)


def test_what_enters_layer_0_is_what_the_network_says(victim):
    ids = whole_chunk(victim.model, TEXT).ids
    entering = victim.embedding.entering(victim.embedding.matrix[ids][None])[0]
    assert_close(entering, victim.model.map_at(ids, kind="model").x)
    assert victim.embedding.additive == (victim.model.family != "bert")


def test_attention_output_is_the_layers_own(victim):
    ids = whole_chunk(victim.model, TEXT).ids
    found = victim.embedding.attention(victim.embedding.matrix[ids][None], 1)[0]
    at = victim.model.map_at(ids, 1)
    assert_close(found, at())


def test_bad_directions_are_refused(victim):
    ids = whole_chunk(victim.model, TEXT).ids
    room = Room([1, 2], victim.writable, victim.embedding.matrix)
    with pytest.raises(InputError, match="direction of shape"):
        invert(victim.embedding, ids, torch.zeros(3, 24), room)
    with pytest.raises(InputError, match="moves along"):
        invert(victim.embedding, ids, torch.zeros(len(ids), 24), room)
    with pytest.raises(InputError, match="number of tokens"):
        realised(victim.embedding, ids, (Edit(1, "insert", 30),))


def test_slope_aside_where_there_is_none(victim):
    """At the original a norm has no slope; aside it has one, the seed decides where, and it costs two calls."""
    problem = problem_of(victim, objective=Hidden())
    before = problem.spent
    slope = problem.slope(problem.original, seed=1)
    assert problem.spent == before + 2
    assert torch.isfinite(slope).all() and slope.norm() > 0
    assert close(slope, problem.slope(problem.original, seed=1))
    assert not close(slope, problem.slope(problem.original, seed=2))
