"""What does an attacker gain who may perturb the features that enter a layer, within a budget?

Each attack is compared with σ₁, its limit for small budgets, with random noise, and with what is certified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from howsmooth import choices
from howsmooth.lazy import deferred
from howsmooth.norms import NORMS
from howsmooth.questions.fields import (
    BudgetNorm,
    FolderName,
    Steps,
    file_name,
    make_artefact_folder,
    names,
    numbers,
    option,
    whole,
)
from howsmooth.questions.question import Fields, Place, Question, Scope, every_map_and_sample
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, Lengths, ModelSpec, Samples, Tolerance
from howsmooth.records.schema import Count, Length, ModelRecord, Named, Number, PerturbationBudget

if TYPE_CHECKING:
    from howsmooth.attack.feature.attacks import Attack
    from howsmooth.attack.feature.problem import Budget, Target
    from howsmooth.attack.objectives import FeatureObjective
    from howsmooth.models.model import Model
    from howsmooth.questions.work import Work

# The only list of attacks: each from the package `howsmooth.attack.feature`, steps of ascent and a tolerance.
ATTACKS: dict[str, Callable[[Any, int, float], Attack]] = {
    "noise": lambda feature, steps, tol: feature.Noise(),
    "sign": lambda feature, steps, tol: feature.GradientSign(),
    "singular": lambda feature, steps, tol: feature.SingularDirection(tol),
    "ascent": lambda feature, steps, tol: feature.ProjectedGradient(feature.SingularDirection(tol), steps),
    "ascent-noise": lambda feature, steps, tol: feature.ProjectedGradient(feature.Noise(), steps),
    "split": lambda feature, steps, tol: feature.Duplicate() >> feature.SingularDirection(tol),
    "split-ascent": lambda feature, steps, tol: (
        feature.Duplicate() >> feature.ProjectedGradient(feature.SingularDirection(tol), steps)
    ),
}
DEFAULT_ATTACKS = ("noise", "sign", "singular", "ascent")
BUDGET_FIELDS = ("budget", "norm", "perturbed_tokens", "attacks", "steps", "artefacts")


class FeatureAttackSpec(ModelSpec):
    """Which maps and samples, which attacks, and their budgets."""

    varied: ClassVar[tuple[str, ...]] = ("budget", "attacks")

    samples: Samples = 1
    objective: Annotated[
        Literal[*choices.FEATURE_OBJECTIVES],  # type: ignore[valid-type]
        option(
            "What to change: the last hidden states, the next token's distribution (KL), or the mean embedding "
            "(cosine)."
        ),
    ] = choices.OUTPUT
    budget: Annotated[
        tuple[float, ...],
        numbers("0.001,0.01,0.1"),
        option(
            "Sizes of the perturbation: fractions of ‖X‖, or of the mean |x_i| with --norm token.", metavar="NUMBER,…"
        ),
    ] = (0.01,)
    norm: BudgetNorm = "frobenius"
    perturbed_tokens: Annotated[int | None, whole(), option("Perturb at most this many tokens.", metavar="COUNT")] = (
        None
    )
    attacks: Annotated[
        tuple[str, ...],
        names(tuple(ATTACKS)),
        option(
            f"Attacks: {', '.join(ATTACKS)}; split duplicates every token first.", metavar="NAME,…", flag="--attack"
        ),
    ] = DEFAULT_ATTACKS
    steps: Steps = 20
    artefacts: Annotated[
        FolderName | None, option("Tensors to save, as safetensors: each attack that is computed.", metavar="DIR")
    ] = None

    @model_validator(mode="after")
    def _check_perturbed_tokens(self) -> FeatureAttackSpec:
        shortest = min(self.lengths)
        if self.perturbed_tokens is not None and self.perturbed_tokens > shortest:
            raise ValueError(
                f"expected perturbed_tokens up to the shortest length, {shortest}, got {self.perturbed_tokens}; use a "
                "smaller number"
            )
        return self


class LayerAttackSpec(FeatureAttackSpec):
    """Which layers and samples, which attacks, and their budgets."""

    options: ClassVar[tuple[str, ...]] = (*CHUNK_FIELDS, "map", "layers", "heads", *SOLVER_FIELDS, *BUDGET_FIELDS)

    question: str = "layer-attack"
    lengths: Lengths = (64,)
    tol: Tolerance = 1e-2


class FeatureAttackRecord(ModelRecord):
    """One attack with one budget on one map: `gain` is the change of the output over ‖E‖.

    A number that overflowed is None, and the status says so.
    """

    sample: Count
    share: float  # of the budget in ‖X‖, or in the mean |x_i|
    attack: Named
    objective: Named
    budget: PerturbationBudget
    spent: float | None
    touched: Count
    change: float | None
    gain: float | None
    clean: float | None  # of the objective, in its own unit
    attacked: float | None
    calls: Count
    seconds: float
    attacked_n: Length  # more than n if tokens were duplicated
    sigma: Number
    noise_gain: float | None
    certified: float | None
    file: str | None = None  # with the perturbation, in the folder of --artefacts


class LayerAttack(FeatureAttackRecord, kind="layer attack"):
    """An attack on what enters a layer."""


def named_attack(name: str, steps: int = 20, tol: float = 1e-2) -> Attack:
    """Return an attack by name.

    Args:
        name: A key of `ATTACKS`.
        steps: Steps of ascent.
        tol: Tolerance of the singular direction.

    Example:
        >>> named_attack("split").name
        'duplicate all ×2 >> singular'
    """
    from howsmooth.attack import feature

    return ATTACKS[name](feature, steps, tol)


def places(spec: FeatureAttackSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each budget and attack on each map and sample."""
    for at in every_map_and_sample(spec, scope):
        for share, attack in product(spec.budget, spec.attacks):
            yield {**at, "share": share, "attack": attack}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Attack one map at one sample: with each budget, by each attack."""
    from howsmooth.attack.feature.problem import Budget, Target
    from howsmooth.attack.feature.result import run, save_attack
    from howsmooth.records.lines import replace_non_finite

    at, spec = places[0].at, work.spec
    folder, objective = make_artefact_folder(spec), _objective(spec, work.model)
    target = Target.in_model(work.model, work.given(at["sample"]), at["layer"], spec.map_name, head=at["head"])
    unit = _unit(spec, target) or 1.0
    baselines: dict[Any, Baselines] = {}  # of the tokens as they are, and after each edit
    for place in places:
        share, attack = place.at["share"], named_attack(place.at["attack"], spec.steps, spec.tol)
        budget = Budget(share * unit, spec.norm, spec.perturbed_tokens)
        found = run(attack, target, budget, objective, seed=spec.seed)
        if attack.edit not in baselines:
            clean = target if attack.edit is None else target.with_tokens(found.x)
            baselines[attack.edit] = Baselines(clean, objective, spec)
        compared = baselines[attack.edit]
        fields: Fields = replace_non_finite(
            {
                "model": work.model.name,
                "map": spec.map_name,
                **work.sample_fields(at),
                "share": share,
                **found.as_record(),
                "n": work.n,
                "attacked_n": found.n,
                "sigma": compared.sigma,
                "noise_gain": found.gain if place.at["attack"] == "noise" else compared.noise_gain(budget),
                "certified": compared.certified_gain(budget),
                **work.fields,
                "file": None if folder is None else file_name(at, work.n, place.key, prefix=spec.map_name),
            }
        )
        if folder is not None:
            save_attack(found, folder / fields["file"], fields)
        yield place, fields


def _unit(spec: FeatureAttackSpec, target: Target) -> float:
    """Return what budgets are shares of: ‖X‖, or ‖X‖/√n for each token."""
    import torch

    norm = float(torch.linalg.vector_norm(target.x, dtype=torch.float64))
    return NORMS[spec.norm].unit(norm, target.n)


def _objective(spec: FeatureAttackSpec, model: Model) -> FeatureObjective:
    from howsmooth.attack.objectives import NextToken, OutputChange, Similarity

    if spec.objective == choices.NEXT_TOKEN:
        return NextToken(model.language_head)
    return Similarity() if spec.objective == choices.COSINE else OutputChange()


class Baselines:
    """What the attacks on one target are compared with; each number is computed once, when it is needed."""

    def __init__(self, target: Target, objective: FeatureObjective, spec: FeatureAttackSpec) -> None:
        """Take the target and the settings of the attacks on it."""
        self.target, self.objective, self.spec = target, objective, spec
        self._known: dict[Any, Any] = {}

    @cached_property
    def sigma(self) -> dict[str, Any]:
        """σ₁ of the map followed by the objective, at the clean tokens."""
        from howsmooth.attack.feature.problem import FeatureProblem
        from howsmooth.questions.quantities import estimate_at

        f = FeatureProblem(self.target, self.objective).map
        return estimate_at(f, self.target.x, solver=self.spec.spectral_solver, strict=False).as_record()

    def noise_gain(self, budget: Budget) -> float:
        """Return the gain of random noise."""
        from howsmooth.attack.feature.attacks import Noise
        from howsmooth.attack.feature.result import run

        if budget not in self._known:
            self._known[budget] = run(Noise(), self.target, budget, self.objective, seed=self.spec.seed).gain
        gain: float = self._known[budget]
        return gain

    def certified_gain(self, budget: Budget) -> float | None:
        """Return an upper bound on every gain within the budget, for attention."""
        import torch

        from howsmooth.attack.objectives import OutputChange
        from howsmooth.attention.heads import SelfAttention
        from howsmooth.bounds.ball import certify_ball
        from howsmooth.norms import NORMS

        f, x, size = self.target.f, self.target.x.double(), budget.size
        if not isinstance(f, SelfAttention) or not isinstance(self.objective, OutputChange):
            return None
        per: Literal["token", "text"] = "token" if NORMS[budget.norm].each_token else "text"
        if (size, per) not in self._known:
            f = f.converted(dtype=torch.float64)
            self._known[size, per] = certify_ball(f, x, size, at_center=self.sigma["upper"], per=per).value
        gain: float | None = self._known[size, per]
        return gain


def caveats(records: Sequence[Fields]) -> Iterator[str]:
    """Yield a line about attacks whose change of the output may be rounding, or overflowed."""
    from howsmooth.attack.feature.result import ABOVE_ROUNDING

    unreliable = [record["status"] for record in records if record["status"] != ABOVE_ROUNDING]
    if unreliable:
        yield (
            f"warning: {len(unreliable)} of {len(records)} attacks have no reliable change of the output "
            f"({', '.join(sorted(set(unreliable)))}): try --dtype float64 or another --budget"
        )


QUESTION = Question(
    spec=LayerAttackSpec,
    records=(LayerAttack,),
    answer=answer,
    tables=deferred("howsmooth.report.attacks:feature_tables"),
    charts=deferred("howsmooth.report.attacks:feature_charts"),
    plots="gains against the budget",
    about="Perturb the features that enter a layer, to change its output; compare the gain of each attack with σ₁, "
    "with random noise and with the certificate.",
    noun="attack",
    places=places,
    needs_text=True,
    check=make_artefact_folder,
    caveats=caveats,
)
