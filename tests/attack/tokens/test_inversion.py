"""First-order scores and the inversion of directions, against dense references in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth import InputError
from howsmooth.attack.tokens import Edit, EditLimits, Flip, Hidden, TextProblem, captured_share, invert
from howsmooth.attack.tokens.attack import whole_chunk
from howsmooth.attack.tokens.edits import SearchSpace
from howsmooth.attack.tokens.inversion import input_change
from howsmooth.attack.tokens.methods import allowed_scores, best_substitutions, substitution_scores

from ...tolerances import FLOAT32, assert_close, close
from .conftest import SMALL_TEXT, TEXT


def problem_of(target, text=TEXT, objective=None, **limits) -> TextProblem:
    return TextProblem(target, whole_chunk(target.model, text), objective or Flip(), EditLimits(**limits), calls=10_000)


def test_scores_are_dense_directional_derivatives(decoder):
    """⟨g_i, e_v − e_i⟩ against forward mode along e_v − e_i, for several tokens and positions."""
    problem = problem_of(decoder)
    gradient = problem.gradient(problem.original)
    scores = substitution_scores(gradient, decoder.embedding.matrix, problem.ids)
    vectors = decoder.embedding.matrix[problem.ids][None]
    where = torch.arange(len(problem.ids))[None]

    def value(x):
        return Flip().value(Flip().features(decoder.embedding, x), problem.reference, where).sum()

    for position, token in itertools.product((0, 3, len(problem.ids) - 1), (7, 200, 599)):
        tangent = torch.zeros_like(vectors)
        tangent[0, position] = decoder.embedding.matrix[token] - vectors[0, position]
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            derivative = torch.func.jvp(value, (vectors,), (tangent,))[1]
        assert_close(scores[position, token], derivative, FLOAT32)  # Llama computes norms in float32


def test_ranking_returns_the_largest_allowed_scores(decoder):
    problem = problem_of(decoder)
    positions = torch.tensor(problem.search_space.positions)
    scores = allowed_scores(problem.gradient(problem.original), problem.ids, problem.search_space, positions)
    first, second = best_substitutions(scores, positions, 2)
    order = scores.flatten().sort(descending=True)
    assert close(scores[problem.search_space.positions.index(first.position), first.token], order.values[0])
    assert close(scores[problem.search_space.positions.index(second.position), second.token], order.values[1])
    assert first.token != problem.ids[first.position]


@pytest.mark.parametrize("seed", range(3))
def test_captured_share_agrees_with_least_squares(seed):
    generator = torch.Generator().manual_seed(seed)
    u, change = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    if (u * change).sum() < 0:
        change = -change
    fit = torch.linalg.lstsq(change.reshape(-1, 1), u.reshape(-1, 1))
    error = (u.reshape(-1, 1) - change.reshape(-1, 1) @ fit.solution).square().sum() / u.square().sum()
    assert captured_share(u, change) == pytest.approx(1 - float(error), rel=1e-12)
    assert captured_share(u, -change) == 0.0  # exact: cut off at zero


def test_one_substitution_is_the_best_of_all(target):
    """The best share over every position and every allowed token, by brute force."""
    ids = whole_chunk(target.model, TEXT).ids[:6]
    positions = [1, 2, 4]
    writable = torch.zeros_like(target.writable)
    writable[20:50] = True
    space = SearchSpace(positions, writable & target.writable, target.embedding.matrix)
    direction = torch.randn(6, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = invert(target.embedding, ids, direction, space)
    tokens = torch.where(space.writable)[0].tolist()
    shares = {
        (p, t): captured_share(direction, input_change(target.embedding, ids, (Edit(p, "substitute", t),)))
        for p in positions
        for t in tokens
        if t != ids[p]
    }
    assert found.share == pytest.approx(max(shares.values()), rel=1e-10)
    assert close(found.error, 1 - found.share) and 0 < found.share < 1


def test_two_substitutions_are_the_best_of_all_pairs(small):
    ids, positions = whole_chunk(small.model, SMALL_TEXT).ids, [1, 3, 6]
    space = SearchSpace(positions, small.writable, small.embedding.matrix)
    tokens = torch.where(small.writable)[0].tolist()
    singles = [(Edit(p, "substitute", t),) for p in positions for t in tokens if t != ids[p]]
    sets = singles + [(*a, *b) for a, b in itertools.combinations(singles, 2) if a[0].position != b[0].position]
    changes = [input_change(small.embedding, ids, edits) for edits in sets]
    improved = 0
    for seed in range(8):
        direction = torch.randn(len(ids), 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        one, two = (invert(small.embedding, ids, direction, space, edits=k) for k in (1, 2))
        assert two.share == pytest.approx(max(captured_share(direction, change) for change in changes), rel=1e-9)
        improved += two.share > one.share
    assert improved >= 4  # otherwise pairs would not be tested


def test_the_change_of_a_substitution_is_inverted_exactly(target):
    """Inverting the change of a substitution returns that substitution, with a share of 1."""
    ids = whole_chunk(target.model, TEXT).ids
    token = int(torch.where(target.writable)[0][40])
    edit = Edit(3, "substitute", token)
    space = SearchSpace(list(range(1, len(ids) - 1)), target.writable, target.embedding.matrix)
    found = invert(target.embedding, ids, 0.01 * input_change(target.embedding, ids, (edit,)), space)
    assert found.edits == (edit,) and found.share == pytest.approx(1, rel=1e-9)


def test_the_input_of_layer_0_agrees_with_the_network(target):
    ids = whole_chunk(target.model, TEXT).ids
    entering = target.embedding.first_layer_input(target.embedding.matrix[ids][None])[0]
    assert_close(entering, target.model.map_at(ids, map="model").x)
    assert target.embedding.additive == (target.model.family != "bert")


def test_the_attention_output_agrees_with_the_layer(target):
    ids = whole_chunk(target.model, TEXT).ids
    found = target.embedding.attention(target.embedding.matrix[ids][None], 1)[0]
    at = target.model.map_at(ids, 1)
    assert_close(found, at())


def test_bad_directions_are_refused(target):
    ids = whole_chunk(target.model, TEXT).ids
    space = SearchSpace([1, 2], target.writable, target.embedding.matrix)
    with pytest.raises(InputError, match="direction of shape"):
        invert(target.embedding, ids, torch.zeros(3, 24), space)
    with pytest.raises(InputError, match="moves along"):
        invert(target.embedding, ids, torch.zeros(len(ids), 24), space)
    with pytest.raises(InputError, match="number of tokens"):
        input_change(target.embedding, ids, (Edit(1, "insert", 30),))


def test_zero_gradients_are_replaced_by_gradients_at_noise(target):
    """At the original a norm has zero gradient; near it, the seed determines the gradient, which costs two calls."""
    problem = problem_of(target, objective=Hidden())
    before = problem.calls_used
    gradient = problem.gradient(problem.original, seed=1)
    assert problem.calls_used == before + 2
    assert torch.isfinite(gradient).all() and gradient.norm() > 0
    assert close(gradient, problem.gradient(problem.original, seed=1))
    assert not close(gradient, problem.gradient(problem.original, seed=2))
