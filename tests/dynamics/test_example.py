"""Declared flows: each named example does what it says, a wrong file is refused by name."""

from __future__ import annotations

import pytest
import torch

from howsmooth.choices import MATRIX_NAMES
from howsmooth.dynamics import integrate, integrate_example, read_example, trajectory_records
from howsmooth.dynamics.declaration import ATTENTION_NAMES, EXAMPLE_NAMES, parse_example
from howsmooth.dynamics.example import field_of, matrix, tokens_of, unmet_expectations
from howsmooth.dynamics.overrides import named_matrix
from howsmooth.errors import InputError
from tests.tolerances import assert_close, close


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_examples_meet_their_expectations(name):
    example = read_example(name)
    trajectory, field = integrate_example(example.replace("flow", frames=3))
    assert example.expect and trajectory.status == "finished"
    *_, last = trajectory_records(
        trajectory, field, tol=example.watch.tol, renormalised=example.flow.coordinates == "renormalised"
    )
    assert unmet_expectations(example.expect, last) == []


def test_expectations_can_fail():
    assert unmet_expectations({"clusters": 5, "rank": {"at_least": 3, "at_most": 4}}, {"clusters": 6, "rank": 2}) == [
        "clusters: expected equal to 5, got 6",
        "rank: expected at_least 3, got 2",
    ]
    assert unmet_expectations({"rank": 1}, {"rank": None})


def test_collapse_is_slow():
    """|x| ~ t^{−1/2}: four times the depth halves the diameter."""
    example = read_example("collapse").replace("flow", until=1600.0)
    trajectory, _ = integrate_example(example.replace("flow", frames=5))
    at = dict(zip(trajectory.times.tolist(), trajectory.tokens, strict=True))
    ratio = float(at[1600.0].norm() / at[400.0].norm())
    assert ratio == pytest.approx(0.5, abs=0.01)


def test_the_sphere_has_plateaus():
    from howsmooth.dynamics.instruments import clusters, plateaus

    trajectory, _ = integrate_example(read_example("sphere"))
    counts = [clusters(x, 0.1).count for x in trajectory.tokens]
    found = plateaus(trajectory.times.tolist(), counts, least=0.2)
    assert [p.count for p in found] == [3, 2] and found[0].start < 10 and 30 < found[0].end < 45


@pytest.mark.parametrize("name", ATTENTION_NAMES)
def test_every_kind_can_be_declared(name):
    example = parse_example(
        "mine",
        {
            "attention": {"name": name, "V": -0.5},
            "tokens": {"count": 5},
            "flow": {"until": 0.5, "frames": 3},
            "watch": {"lipschitz": True},
        },
    )
    trajectory, field = integrate_example(example)
    records = list(trajectory_records(trajectory, field, tol=0.05, lipschitz=True))
    assert field.name == name and len(records) == 3
    assert all(record["local"] > 0 for record in records)
    assert (records[-1]["rank"] is not None) == (name == "softmax")


def test_heads_add_up():
    a, b = {"A": 1.0, "V": [1.0, 2.0]}, {"A": [[0.0, 1.0], [1.0, 0.0]], "V": -1.0}
    x = tokens_of(read_example("polytope").tokens)
    both = parse_example("mine", {"attention": {"heads": [a, b]}}).attention
    one, other = (parse_example("mine", {"attention": head}).attention for head in (a, b))
    assert_close(field_of(both, 2).on_tokens(x), field_of(one, 2).on_tokens(x) + field_of(other, 2).on_tokens(x))


def test_tokens_are_drawn_from_their_seed():
    tokens = read_example("polytope").tokens
    assert close(tokens_of(tokens), tokens_of(tokens))
    ball = read_example("polytope").replace("tokens", law="sphere", size=2.0).tokens
    assert_close(tokens_of(ball).norm(dim=-1), torch.full((40,), 2.0, dtype=torch.float64))
    points = parse_example("mine", {"tokens": {"points": [[1.0, 2.0], [3, 4]]}}).tokens
    assert tokens_of(points).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "declared, words",
    [
        ({"tokens": {"cuont": 3}}, "unknown key 'cuont' in tokens; did you mean 'count'"),
        ({"atention": {}}, "did you mean 'attention'"),
        ({"attention": {"name": "soft"}}, "attention.name: expected 'softmax', 'l2'.*got 'soft'"),
        ({"attention": {"heads": [{"B": 1}]}}, "unknown key 'B' in attention; known are A, V"),
        ({"tokens": {"count": 2.5}}, "tokens.count: expected an integer, got 2.5"),
        ({"tokens": {"count": 0}}, "tokens.count: expected a number greater than or equal to 1, got 0"),
        ({"tokens": {"points": [["a"]]}}, "tokens.points: expected a list of rows of numbers"),
        ({"flow": {"until": "far"}}, "flow.until: expected a number, got 'far'"),
        ({"flow": {"coordinates": "renormalised", "sphere": True}}, "off the sphere"),
        ({"attention": {"name": "l2", "causal": True}}, "only with softmax"),
        ({"tokens": 3}, "tokens: expected a table, got 3"),
        ({"expect": 3}, "expect: expected a table, got 3"),
        ({"expect": {"clusters": {"at_most": "4"}}}, "expect.clusters: expected a number, got '4'"),
        ({"expect": {"rank": {"at_most": [1]}}}, "expect.rank: expected a number"),
        ({"expect": {"rank": {"about": 1}}}, "expect.rank: expected at_least or at_most, got 'about'"),
        ({"tokens": {"seed": 2**70}}, "tokens.seed: expected a number less than 9223372036854775808"),
        ({"attention": {"A": 10**400}}, "attention.A: expected a number, a diagonal"),
        ({"flow": {"until": 10**400}}, "flow.until: expected a number"),
        ({"tokens": {"points": [[10**400]]}}, "tokens.points: expected a list of rows"),
        ({"tokens": {"points": [[1.0, 2.0]], "count": 5}}, "points without another"),
        ({"tokens": {"points": [[1.0, 2.0]], "size": 5.0}}, "points without another"),
        ({"attention": {"bias": 1.0}}, "bias only with sigmoid"),
        ({"attention": {"eps": 0.5, "name": "l2"}}, "eps only with sinkhorn"),
        ({"attention": {"A": 2.0, "heads": [{"A": 1.0}]}}, "A and V in the heads"),
        ({"tokens": {"count": True}}, "tokens.count: expected an integer, got True"),
        ({"flow": {"saves": 41}}, "mine: flow: expected frames, got saves; rename it"),
        ({"watch": {"lipschitz": 1}}, "watch.lipschitz: expected a boolean, got 1"),
        ({"name": "other"}, "unknown key 'name'"),
        ({"watch": {"tol": "x"}, "flow": {"solvr": "rk4"}}, "unknown key 'solvr' in flow; .*; watch.tol: "),
    ],
)
def test_wrong_files(declared, words):
    with pytest.raises(InputError, match=words):
        parse_example("mine", declared)


def test_wrong_names_and_matrices(tmp_path):
    with pytest.raises(InputError, match="did you mean 'polytope'"):
        read_example("polytop")
    with pytest.raises(InputError, match="readable TOML"):
        read_example(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("title = ")
    with pytest.raises(InputError, match="broken: expected valid TOML"):
        read_example(str(broken))
    with pytest.raises(InputError, match=r"expected V of shape \(3, 3\)"):
        integrate_example(parse_example("mine", {"attention": {"V": [1.0, 2.0]}, "tokens": {"dim": 3}}))
    with pytest.raises(InputError, match="expected A as a number"):
        integrate_example(parse_example("mine", {"attention": {"A": [[10**400, 0], [0, 1]]}}))
    with pytest.raises(InputError, match="got 0 as token 1"):
        integrate_example(parse_example("mine", {"tokens": {"points": [[1, 0], [0, 0]]}, "flow": {"sphere": True}}))
    with pytest.raises(InputError, match="a field of a record"):
        unmet_expectations({"colour": 1}, {"clusters": 1})


def test_replaced_values_are_checked():
    example = read_example("polytope")
    assert example.replace("tokens", count=None) is example
    assert not example.replace("tokens", count=9).expect  # expectations hold for the declared flow only
    with pytest.raises(InputError, match=r"polytope: tokens.count: .* greater than or equal to 1, got -1"):
        example.replace("tokens", count=-1)
    points = parse_example("mine", {"tokens": {"points": [[1.0, 2.0, 3.0]]}})
    assert (points.tokens.count, points.tokens.dim) == (1, 3)
    with pytest.raises(InputError, match="points without another"):
        points.replace("tokens", count=7)


def test_records_of_a_flow_that_blows_up():
    trajectory, field = integrate_example(
        parse_example("mine", {"attention": {"name": "linear"}, "flow": {"frames": 5}})
    )
    records = list(trajectory_records(trajectory, field, tol=0.1))
    assert trajectory.status == "blew up" and close(records[-1]["t"], trajectory.reached) and trajectory.reached < 10.0
    assert integrate(field, trajectory.tokens[0], 0.1).status == "finished"


def test_named_matrices():
    for name in MATRIX_NAMES:
        assert matrix(named_matrix(name, 2, seed=0), 2, "A").shape == (2, 2)
    with pytest.raises(InputError, match="one of identity, -identity, rotation, random, got 'diagonal'"):
        named_matrix("diagonal", 2, seed=0)
