"""Which few tokens of a text, edited, change the output of a model? Methods are compared at equal numbers of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from howsmooth.choices import METHODS, ONLY_SUBSTITUTE, OPERATIONS, SUBSTITUTE, TEXT_OBJECTIVES
from howsmooth.lazy import deferred
from howsmooth.questions.fields import names, number, numbers, option, whole
from howsmooth.questions.question import Fields, Place, Question, Scope
from howsmooth.questions.spec import Indices, Lengths, ModelChoice, Models, ModelSpec, Samples
from howsmooth.records.schema import Count, ModelRecord, TokenEdit

if TYPE_CHECKING:
    from howsmooth.attack.objectives import TextObjective
    from howsmooth.attack.tokens.edits import EditLimits, SentenceSimilarity
    from howsmooth.models.model import Model
    from howsmooth.questions.inputs import Inputs
    from howsmooth.questions.work import Work
    from howsmooth.texts.corpora import Corpus


class TokenAttackSpec(ModelSpec):
    """Which texts, which methods, what should change, and which edits are allowed."""

    options: ClassVar[tuple[str, ...]] = (
        *("texts", "lengths", "samples", "seed", "methods", "objective", "layers", "threshold"),
        *("edits", "calls", "allow", "protect", "similarity", "judge"),
    )
    varied: ClassVar[tuple[str, ...]] = ("methods",)
    takes_short_texts: ClassVar[bool] = True

    question: str = "token-attack"
    models: Models = (ModelChoice(name="smollm2"),)  # it predicts the next token, which the objective flip requires
    lengths: Lengths = (128,)
    samples: Samples = 4
    layers: Annotated[
        Indices,
        option(
            "Which layers: one, whose attention output is to change, with --objective hidden; all stands for the last "
            "hidden states.",
            metavar="NUMBER|all",
        ),
    ] = "all"
    methods: Annotated[
        tuple[str, ...],
        names(METHODS, everything="all"),
        option(f"Methods: {', '.join(METHODS)}; or all.", flag="--method", metavar="NAME,…"),
    ] = ("hotflip", "probe")
    objective: Annotated[
        Literal[*TEXT_OBJECTIVES],  # type: ignore[valid-type]
        option("What to change: the next token, its distribution, hidden states, or the mean-pooled embedding."),
    ] = "flip"
    threshold: Annotated[
        float | None,
        number(),
        option("Value at which an attack counts as successful and stops.  [flip has its own]", metavar="NUMBER"),
    ] = None
    edits: Annotated[int, whole(), option("Tokens that may be edited.", metavar="COUNT")] = 2
    calls: Annotated[int, whole(3), option("Model calls for each method and text.", metavar="COUNT")] = 40
    allow: Annotated[
        tuple[str, ...],
        names(OPERATIONS),
        option(
            f"Operations; {', '.join(ONLY_SUBSTITUTE[:-1])} and {ONLY_SUBSTITUTE[-1]} only substitute.",
            metavar="NAME,…",
        ),
    ] = OPERATIONS
    protect: Annotated[
        tuple[int, ...] | Literal["none"],
        numbers("-1,0", integer=True, keyword="none", minimum=-(10**9)),
        option(
            "Positions that are not edited, negative ones counted from the end. Special tokens are never edited.",
            metavar="-1,0|none",
        ),
    ] = (-1,)
    similarity: Annotated[
        float | None,
        number(-1, 1),
        option("Smallest allowed cosine between the embeddings of a token and its replacement.", metavar="COSINE"),
    ] = None
    judge: Annotated[
        float | None,
        number(-1, 1),
        option(
            "Smallest allowed cosine between MiniLM's embeddings of the original and the edited text.", metavar="COSINE"
        ),
    ] = None

    @model_validator(mode="after")
    def _check_attack(self) -> TokenAttackSpec:
        if len(self.lengths) > 1:
            raise ValueError(f"expected one length for attacks on tokens, got {len(self.lengths)}; run one at a time")
        if self.layers != "all":  # which stands for the last hidden states
            if self.objective != "hidden":
                raise ValueError(f'expected layers only with objective = "hidden", got {self.objective}; leave it out')
            if len(self.layers) != 1:
                raise ValueError(f"expected layers with exactly one layer, got {len(self.layers)}; name one")
        if SUBSTITUTE not in self.allow and (only := [name for name in self.methods if name in ONLY_SUBSTITUTE]):
            raise ValueError(
                f"expected allow with substitute for the method {only[0]}, got {','.join(self.allow)}; allow it, or "
                "leave the method out"
            )
        return self

    @property
    def map_name(self) -> str:
        """The whole model, or the attention of the one layer whose output is to change."""
        return "model" if self.layers == "all" else "attention"


class TokenAttackRecord(ModelRecord, kind="token attack"):
    """The best edits of one text that one method found, evaluated a second time."""

    sample: Count
    method: dict[str, Any]
    objective: dict[str, Any]
    limits: dict[str, Any]
    clean: float
    value: float
    success: bool
    verified: bool
    edits: list[TokenEdit]
    calls: Count
    budget: Count
    ids: list[Count]
    attacked_ids: list[Count]
    words: list[str]
    new_words: list[str]
    next_tokens: list[str] | None
    round_trips: bool | None
    judge: dict[str, Any] | None
    notes: dict[str, Any]


def places(spec: TokenAttackSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each text with each method."""
    for sample in scope.samples:
        for method in spec.methods:
            yield {"layer": scope.layers[0], "sample": sample, "method": method}


def inputs(model: Model, corpus: Corpus | None, spec: TokenAttackSpec) -> Inputs:
    """Return the chunks to attack, after checking that each can be attacked.

    Raises:
        InputError: The model lacks the language head that the objective needs, or the text is too short for the edits.
    """
    import sys

    from howsmooth.questions.inputs import TextInputs, inputs_of

    found = inputs_of(model, corpus, spec)
    if not isinstance(found, TextInputs):
        return found
    # A text may be shorter than the length, but has to have more tokens than are edited, without special tokens.
    model.cutter(found.corpus, special_tokens=False).check(spec.edits + 1, 1)
    if _objective(spec, None).uses_last_token:
        _ = model.language_head
    n, samples = found.fitted(spec.lengths[0], spec.samples)
    longest = sys.maxsize if model.positions is None else model.positions
    for sample in range(samples):
        _limits(spec).editable_positions(found.chunk(n, sample).special.tolist(), longest)
    return found


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Attack one text by some methods, and evaluate each result again from its token ids."""
    from howsmooth.attack import tokens

    spec, target = work.spec, tokens.TargetModel(work.model)
    judge = None if spec.judge is None else _judge(spec.judge)
    for place in places:
        at = place.at
        record = tokens.attack_text(
            target,
            work.chunk(at["sample"]),
            tokens.METHODS[at["method"]](),
            objective=_objective(spec, at["layer"]),
            limits=_limits(spec),
            calls=spec.calls,
            seed=spec.seed + at["sample"],
            similarity=judge,
        ).as_record()
        verified = tokens.verify(target, record).holds
        yield (
            place,
            {
                **work.fields,
                **work.sample_fields(at),
                "map": spec.map_name,
                **record,
                "model": work.fields["model"],
                "verified": verified,
                "status": "verified" if verified else "not verified",
                "judge": None if judge is None else {"model": judge.model.name, "least": judge.least},
                "sha256": work.model.source.get("sha256"),
            },
        )


@lru_cache(maxsize=1)
def _judge(least: float) -> SentenceSimilarity:
    from howsmooth.attack.tokens.edits import SentenceSimilarity
    from howsmooth.models.loading import load

    return SentenceSimilarity(load("minilm"), least)


def _objective(spec: TokenAttackSpec, layer: int | None) -> TextObjective:
    from howsmooth.attack.objectives import TEXT_OBJECTIVES

    settings = {"layer": layer, "threshold": spec.threshold}
    return TEXT_OBJECTIVES[spec.objective](**{name: value for name, value in settings.items() if value is not None})


def _limits(spec: TokenAttackSpec) -> EditLimits:
    from howsmooth.attack.tokens.edits import EditLimits

    protected = () if isinstance(spec.protect, str) else spec.protect
    return EditLimits(edits=spec.edits, allow=spec.allow, protected=protected, similarity=spec.similarity)


def caveats(records: Sequence[Fields]) -> Iterator[str]:
    """Yield a line about attacks whose second evaluation gave something else."""
    if failed := sum(not record["verified"] for record in records):
        yield f"warning: {failed} of {len(records)} attacks did not hold when they were evaluated again"


QUESTION = Question(
    spec=TokenAttackSpec,
    records=(TokenAttackRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.attacks:token_tables"),
    charts=deferred("howsmooth.report.attacks:token_charts"),
    plots="what each attack attained against its calls",
    about="Attack texts by editing a few real tokens; methods are compared at equal numbers of edits and model calls."
    "\n\n"
    "    A call is one forward or backward pass of one sequence. Every success is evaluated again from its token ids\n"
    "    before it is reported. A text that is shorter than the length is attacked as a whole.",
    noun="attack",
    places=places,
    together=("sample", "method"),
    inputs=inputs,
    needs_text=True,
    caveats=caveats,
    describe=lambda at: f"text {at['sample']}, {at['method']}",
)
