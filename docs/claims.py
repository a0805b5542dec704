"""Write docs/claims.md: what we say against print, each with its command, its records, its range and its test.

    python docs/claims.py            # writes the page from the records in docs/images
    python docs/claims.py --check    # only compares: exit code 1 where the page or a sentence of the docs differs

A sentence with numbers is made from the records here, and tests/docs/test_claims.py fails if the page that says it says
something else, if a record, a test or a command does not exist, or if a page has a sentence of this kind that is not here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
import claim_numbers as numbers  # noqa: E402 - beside this script

GPT2 = "--gpt2 gpt2_attention.safetensors"


@dataclass(frozen=True)
class Claim:
    """A statement of ours that something printed is wrong, or that something is not so.

    Attributes:
        title: Heading of its section.
        sentences: Page or file and sentence, as it stands there; numbers in it come from records.
        commands: What computes it.
        records: Files in docs/images, or paths; none where the command prints all of it, or where it is a proof.
        range: What was tried: models, lengths, sizes.
        choices: The free choices, and what they do.
        tests: File and name of the tests at small size.
    """

    title: str
    sentences: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]
    records: tuple[str, ...]
    range: str
    choices: str
    tests: tuple[str, ...]


@cache
def claims() -> list[Claim]:
    """Return all claims."""
    sizes, lengths = numbers.plateaus()
    grows, power = numbers.steepest()
    adversarial_command = f"python -m experiments.figures.adversarial {GPT2}"
    return [
        Claim(
            "The worst-case growth is real for whole layers",
            (("findings.md", numbers.signs()), ("findings.md", numbers.spread())),
            (adversarial_command,),
            ("adversarial.jsonl",),
            "MiniLM's 72 heads × layers and GPT-2's 36 (layers 0, 6 and 11), n = 2, 7, 17, 32, 62, 97. Exponents are fitted whether or not a power law passes.",
            "The sign of the eigenvector decides; an earlier version had only u, and wrongly called the layer flat. The scripts' input "
            "is neither u nor −u in GPT-2.",
            (
                "tests/experiments/test_figures.py::test_adversarial_curves_are_those_of_dense_jacobians_and_are_resumed",
                "tests/attack/test_configurations.py::test_the_constant_of_gpt2s_layer_depends_on_the_sign",
                "tests/attack/test_configurations.py::test_both_signs_are_returned_by_some_layer",
            ),
        ),
        Claim(
            "n^¼",
            (("findings.md", numbers.quarter()),),
            ("python -m experiments.law_ranges",),
            ("law_ranges.jsonl",),
            "MiniLM's six layers: n = 2 to 98 with ten samples, n = 16 to 512 with five, and the embedded text with three. A "
            "certified interval of 1 % for each value.",
            "The number of points and the longest length decide: more lengths reject a law that fewer do not.",
            ("tests/experiments/test_law_ranges.py::test_a_part_of_a_curve",),
        ),
        Claim(
            "The released formula produces a quarter",
            (
                ("findings.md", "The scripts compute √‖Jᵀf(X)‖ instead of ‖J‖₂."),
                ("findings.md", "The formula itself produces the quarter."),
                ("comparison.md", "compute √‖Jᵀf(X)‖ on real texts, which"),
                ("findings.md", "No constant factor corrects it."),
            ),
            ("howsmooth reproduce adversarial --gpt2-attention gpt2_attention.safetensors", "howsmooth reproduce text"),
            (),
            "28 curves of four models on two texts, and three panels of adversarial input; tables in the findings.",
            "The scripts' arbitrary sign changes their values by 13 to 19 % in GPT-2's layer 0, not the slope. The statement is exact "
            "for the identity.",
            (
                "tests/studies/test_figures.py::test_the_released_formula_grows_like_n_to_a_quarter_for_the_identity",
                "tests/studies/test_figures.py::test_gpt2s_true_weights_on_adversarial_input",
            ),
        ),
        Claim(
            "The scripts' input of GPT-2, and their map of BERT",
            (
                ("findings.md", "computed from a matrix sliced along the wrong axis, so it is not built for the head."),
                ("src/howsmooth/models/released_scripts.py", "for GPT-2 from a matrix sliced along the wrong axis."),
                (
                    "findings.md",
                    "If all gains are equal and all biases zero, |LayerNorm(z)| is the same for all z, so Jᵀf(X) = 0.",
                ),
            ),
            (adversarial_command, "howsmooth reproduce text --models random:bert --layers 0,6 --lengths 2..128*2"),
            ("adversarial.jsonl",),
            "GPT-2's 36 heads; BERT with random weights.",
            "No free choice: the map is read from the scripts, and Jᵀf(X) = 0 is an identity.",
            (
                "tests/studies/test_figures.py::test_the_released_formula_is_zero_for_a_plain_layer_norm",
                "tests/studies/test_figures.py::test_the_scripts_map_of_bert_is_its_attention_module",
            ),
        ),
        Claim(
            "The published configuration is not the worst case",
            (
                (
                    "findings.md",
                    '**"The" adversarial configuration on a trained head** is not its worst input: ' + numbers.heads(),
                ),
                ("findings.md", "The paper's configuration is not the worst case."),
                (
                    "attack.md",
                    "For 16 tokens in one dimension with A = V = 1 and R = 3, the published configuration has the constant 3.98, and the lower bound derived from it is 1.50; ascent finds 8.50.",
                ),
            ),
            (f"python -m experiments.adversarial_heads {GPT2}", "python -m experiments.figures.regimes"),
            ("adversarial_heads.jsonl", "regimes.json"),
            "108 heads at n = 16 and 64, on the sphere of the radius of the layer's normalisation; d = 1, A = +1, R = 3, n = 16.",
            "Both signs of u, eight seeds; the ascent from four seeds, and every way to put 16 tokens at three points.",
            (
                "tests/experiments/test_adversarial_heads.py::test_heads_are_compared_at_all_inputs_and_resumed",
                "tests/attack/test_starts.py::test_the_published_configuration_is_not_the_worst_case",
            ),
        ),
        Claim(
            "The masked mean-field bound",
            (
                ("findings.md", numbers.masked()),
                ("mean_field.md", '**"The same upper bound as unmasked" does not hold.**'),
                (
                    "mean_field.md",
                    "a measure with the constant v at a shows that the statement is false up to the a' with (1+3a')e^{2a'} = v.",
                ),
                (
                    "mean_field.md",
                    "For p < 2 more is false: the alternating pattern exceeds the statement up to a = 0.39 for p = 1.5, and 0.98 for p = 1.3.",
                ),
                ("gallery.md", "the bound as stated in the paper (dashed), which does not hold for small a."),
                (
                    "src/howsmooth/bounds/mean_field.py",
                    "It is false where `masked_lower` is above it, and true where `masked` is not; between the two the question is open.",
                ),
            ),
            (
                "python -m experiments.masked_threshold",
                "howsmooth meanfield masked --p 1.3,1.5,2 --sizes 0,0.1,0.17,0.39,0.98",
            ),
            ("masked_threshold.jsonl",),
            "Up to 400,000 atoms, 14 values of a from 0.05 to 1; six random patterns of 64 atoms per period.",
            "Number of atoms, ratio of the masses, block length: 0.1796 in the limit of infinitely many atoms at the best period; for "
            "+‖A‖ up to 0.175; random patterns end below the alternating one. Equal tokens alone show only a ≤ 0.1553.",
            (
                "tests/experiments/test_masked_threshold.py::test_few_atoms_exceed_the_published_bound_where_equal_tokens_do_not",
                "tests/experiments/test_masked_threshold.py::test_the_page_has_the_numbers_of_its_records",
                "tests/bounds/test_mean_field.py::test_where_the_statement_is_true_false_and_open",
            ),
        ),
        Claim(
            "No splitting for A ≻ 0",
            (
                ("findings.md", numbers.plane_limit()),
                ("splitting.md", numbers.searched()),
                ("splitting.md", "It is false for κ near 1: " + numbers.near_one()),
            ),
            ("python -m experiments.splitting_limits", "howsmooth meanfield splitting-cases"),
            ("splitting_limits.jsonl",),
            "Two atoms, κ = 1.1, 2, 10, 100, 1000, sizes up to 10⁶, 80 digits.",
            "Masses and seeds: with free masses the search comes within 10⁻³ of the limit. That the limit is approached is proved; that "
            "it is not exceeded is a conjecture for κ ≥ 10, and false for κ near 1.",
            (
                "tests/lipschitz/test_splitting_families.py::test_the_ratio_for_positive_definite_scores_tends_to_its_limit",
                "tests/experiments/test_splitting_limits.py::test_the_command_evaluates_families_and_searches_and_is_resumed",
            ),
        ),
        Claim(
            "Which other maps split",
            (
                (
                    "splitting.md",
                    "L2 attention with K = −Q splits without bound: ½e^{t/2} for two atoms with masses 1 : e^t.",
                ),
                (
                    "splitting.md",
                    "The balanced columns of Sinkhorn attention do not prevent splitting when A has a negative direction.",
                ),
            ),
            ("howsmooth meanfield splitting-cases", "python -m experiments.splitting_search l2 --A -1"),
            ("splitting_limits.jsonl",),
            "L2: distances 2 to 10 of two atoms, ratios 8 to 3·10²². Sinkhorn: two atoms, by a proof.",
            "Masses in logarithms: with bounded masses in float64 a search ends at 246.5.",
            (
                "tests/lipschitz/test_splitting_families.py::test_opposite_l2_splits_without_bound",
                "tests/lipschitz/test_criterion.py::test_sinkhorn_two_atoms_on_the_line",
            ),
        ),
        Claim(
            "The exponent in the radius",
            (
                ("findings.md", numbers.turn_growth()),
                (
                    "mean_field.md",
                    "A rotation has no real eigenvalue, so γ = 0, although the constant grows like e^{R²/2}.",
                ),
                ("mean_field.md", "The 2‖A‖ of the published upper bound is twice the exponent in the worst case."),
            ),
            ("python -m experiments.radius_growth",),
            ("mean_field_rates.jsonl",),
            "A = −1, +1 and a quarter turn; R² from 1 to 12, 48 to 128 and 4 to 24.",
            "Ascent from eight random measures on three atoms for each R; a third point changes the constant, not the exponent.",
            ("tests/experiments/test_radius_growth.py::test_growth_with_the_radius_is_gamma",),
        ),
        Claim(
            "Two points are not the best measure for A = +1",
            (("mean_field.md", numbers.third_point()), ("mean_field.md", numbers.searched_points())),
            (
                "howsmooth meanfield regimes --scores positive --gamma-r2 2,4,32",
                "python -m experiments.points_on_a_line",
            ),
            ("points_on_a_line.jsonl",),
            "γR² from 0.5 to 10⁵ for three points, 2 and 8 for two to five.",
            "Number of points and starts: four and five points find nothing more; at γR² = 8 random starts alone may miss the best. For "
            "A = −1 a third point gains nothing.",
            (
                "tests/experiments/test_points_on_a_line.py::test_no_search_finds_more_than_three_points",
                "tests/lipschitz/test_regimes.py::test_three_points_exceed_two_where_scores_are_positive",
                "tests/lipschitz/test_three_points.py::test_the_gain_of_the_third_point_tends_to_16_over_9",
            ),
        ),
        Claim(
            "Kim et al. 2021, the 2-norm bound for L2 attention",
            (
                (
                    "findings.md",
                    "with ‖W^Q‖² the bound fails by an arbitrary factor, because at X = 0 the norm grows like ‖W^Q‖².",
                ),
                (
                    "src/howsmooth/bounds/kim2021.py",
                    "With 2, which we recall from print (Theorem 3.2; the page was not at hand), the statement is false.",
                ),
                (
                    "findings.md",
                    "That the exponent in print is 2 was recalled, not read again: Theorem 3.2 was not at hand.",
                ),
            ),
            ("python -m pytest tests/attention/test_l2.py",),
            (),
            "One head, W^Q = s·I for growing s, X = 0.",
            "None. What is in print is recalled: Theorem 3.2 of the ICML version (PMLR 139, pages 5562–5571).",
            ("tests/attention/test_l2.py::test_the_published_exponent_is_wrong_by_any_factor",),
        ),
        Claim(
            "The published code for L2 flows",
            (
                (
                    "flows.md",
                    "The published code for L2 flows (Castin et al. 2025) has the factor 1/√d on KᵀQ and not on KᵀK; here neither has it, so that the weight is that of a distance.",
                ),
            ),
            ("python -m pytest tests/attention/test_fields.py",),
            (),
            "Every Q, K and x: an identity.",
            "No free choice: Q/√d in place of Q gives the flow of that code. The code was read, not run.",
            ("tests/attention/test_fields.py::test_the_weights_of_the_published_code_are_those_of_another_query",),
        ),
        Claim(
            "Bounds without a query bias, or under a mask",
            (
                (
                    "findings.md",
                    "**Bounds stated without biases** are false if a query bias is dropped: A = 0, c = (10, 0), V = I and tokens (0, ±1) give a norm of 10.05, while Theorem 1 without c gives 2.45.",
                ),
                ("findings.md", "with A = 0, masked attention is the running mean, whose norm tends to 2, not 1."),
                ("src/howsmooth/bounds/geshkovski2023.py", "Under a mask it is false: at a = 0 it is ‖V‖"),
            ),
            ("python -m pytest tests/bounds/test_this_project.py tests/bounds/test_published.py",),
            (),
            "One example each; a counterexample is enough.",
            "None. The papers state their conditions: what is false is to use the bounds outside of them.",
            (
                "tests/bounds/test_this_project.py::test_a_query_bias_counts_and_theorem_1_without_it_is_false",
                "tests/bounds/test_published.py::test_the_published_n_free_bound_is_false_under_a_mask",
            ),
        ),
        Claim(
            "Gaussian flows blow up",
            (("flows.md", "The share depends on the draw: " + numbers.census()),),
            (
                "python -m experiments.gaussian_census",
                *(
                    f"python -m experiments.gaussian_census {options} --out docs/images/gaussian_census_seeds.jsonl"
                    for options in ("--seed 1", "--seed 2", "--seed 3", "--dim 2", "--dim 5", "--until 100")
                ),
            ),
            ("gaussian_census.jsonl", "gaussian_census_seeds.jsonl"),
            "Softmax attention, A and V with independent entries of variance 1/d, N(0, I) at t = 0, 40 draws each.",
            "Seed, dimension and final time.",
            ("tests/experiments/test_gaussian_census.py::test_every_run_is_counted",),
        ),
        Claim(
            "No head splits",
            (
                ("findings.md", "No head of MiniLM, SmolLM2 or GPT-2 splits: " + numbers.splitting_heads()),
                ("splitting.md", "**No head splits on any of these inputs**"),
                ("splitting.md", numbers.splitting_attention()),
                ("splitting.md", numbers.splitting_layers()),
            ),
            (
                "howsmooth meanfield splitting minilm --lengths 8,64,256 --json minilm.jsonl",
                "howsmooth meanfield splitting minilm --lengths 2,3 --samples 4 --special-tokens none --json short.jsonl",
                "howsmooth meanfield splitting minilm --text alice.txt --lengths 64 --samples 4 --json alice.jsonl",
                "howsmooth meanfield splitting smollm2 --lengths 8,64 --json smollm2.jsonl",
                "howsmooth meanfield splitting gpt2_attention.safetensors --lengths 8,64,256 --json gpt2.jsonl",
                "howsmooth meanfield splitting gpt2_attention.safetensors --lengths 2 --samples 8 --json gpt2-short.jsonl",
                "howsmooth meanfield splitting smollm2 --map attention --lengths 64 --json attention.jsonl",
                "howsmooth meanfield splitting smollm2 --map layer --layers 0,5,10,15,20,25,29 --lengths 32 --json layers.jsonl",
                "python -m experiments.figures.splitting --records minilm.jsonl short.jsonl alice.jsonl smollm2.jsonl gpt2.jsonl "
                "gpt2-short.jsonl attention.jsonl layers.jsonl",
            ),
            ("splitting-heads.jsonl",),
            "Every head of MiniLM and SmolLM2 on text, GPT-2's layers 0, 6 and 11 on random tokens; n from 2 to 256. SmolLM2's attention "
            "layers and seven whole layers on one text.",
            "Text, length, samples and special tokens: the largest ratio goes from 0.76 to 0.95. About the measured inputs, not all texts.",
            (
                "tests/questions/test_splitting_cases.py::test_records_are_valid_and_shown",
                "tests/experiments/test_figures.py::test_heads_of_models_are_summarised",
            ),
        ),
        Claim(
            "No text reaches the plateau",
            (
                (
                    "findings.md",
                    f"No text reaches the plateau: MiniLM's 72 heads have γR² {sizes}, so n* is between {lengths}.",
                ),
                ("mean_field.md", "**No text is as long as n\\*.**"),
                ("mean_field.md", f"MiniLM's heads have γR² {sizes}"),
                ("mean_field.md", "no text is that long"),
            ),
            (f"python -m experiments.adversarial_heads {GPT2}", "howsmooth meanfield regimes"),
            ("adversarial_heads.jsonl",),
            "MiniLM's 72 heads, on the ball that contains the outputs of their normalisation; γ of (A + Aᵀ)/2, without biases.",
            "The radius: at half of it γR² is a quarter, and n* still above 10¹⁴. n* is exact for tokens at two points.",
            (
                "tests/lipschitz/test_regimes.py::test_the_plateau_at_large_radii",
                "tests/experiments/test_adversarial_heads.py::test_heads_are_compared_at_all_inputs_and_resumed",
            ),
        ),
        Claim(
            "Most curves on text are no power laws, and √n does not bound them",
            (
                ("mean_field.md", numbers.text_curves()),
                ("findings.md", grows),
                (
                    "mean_field.md",
                    f"SmolLM2's layer 15 grows like {power} on Alice: √n does not bound the slope for one text",
                ),
                (
                    "findings.md",
                    "√n bounds the worst case at a given radius; it does not bound the slope for one text.",
                ),
            ),
            (
                "python -m experiments.law_ranges",
                "python benchmarks/long_context.py extract smollm2 --layer 15 --text alice.txt --n 4096 --file "
                "activations.safetensors",
                "python benchmarks/long_context.py --activations activations.safetensors --to 12   # needs a GPU",
            ),
            ("law_ranges.jsonl", "benchmarks/results/h200-long-context.jsonl"),
            "MiniLM's six layers on three grids, n from 2 to 512; one layer of SmolLM2 on Alice, n from 128 to 4,096.",
            "Layer, text and range: exponents of single layers go from below 0 to above ½.",
            ("tests/experiments/test_law_ranges.py::test_a_part_of_a_curve",),
        ),
        Claim(
            "Depth: no clusters, no product of constants",
            (
                (
                    "findings.md",
                    "**Trained models: tokens do not cluster, and perturbations grow far less than the layers allow.**",
                ),
                ("findings.md", "**Perturbations grow far less than the product of the layers' constants.**"),
                ("depth.md", "**Trained models form no clusters closer than 0.1.**"),
                ("depth.md", "**A perturbation grows far less than the product of the layers' constants.**"),
                ("depth.md", numbers.amplified()),
                ("depth.md", "the worst directions of consecutive layers are not aligned."),
                ("depth.md", "**The attention sink is not a cluster either.**"),
            ),
            ("howsmooth flow model smollm2", "python -m experiments.figures.depth"),
            ("depth.jsonl", "flow_growth.json"),
            "MiniLM with 64 tokens, SmolLM2 with 32, one text each.",
            "The distance of one cluster: at 0.3 MiniLM's 64 tokens form 47 clusters after five layers, at 0.6 SmolLM2's 32 form 11 "
            "after 29. One text: no statement about others.",
            ("tests/studies/test_depth.py::test_spread_with_and_without_the_sink",),
        ),
        Claim(
            "What the constant does not predict",
            (
                ("findings.md", "**σ₁ predicts small perturbations, not large ones.**"),
                (
                    "findings.md",
                    "**A layer's constant predicts attacks on that layer, not on the model.** "
                    + numbers.layer_predictions(),
                ),
                ("robustness.md", "No bound and no baseline has a larger estimate there."),
                ("robustness.md", "no measure splits in any of these layers"),
                ("robustness.md", "*A layer's constant does not predict attacks on the model.*"),
                (
                    "robustness.md",
                    numbers.token_predictions().replace(
                        "No quantity predicts attacks on tokens", "*No quantity predicts attacks on tokens*"
                    ),
                ),
            ),
            ("python -m experiments.prediction minilm --out minilm.jsonl", "python -m experiments.figures.robustness"),
            ("prediction.json", "linearity.json"),
            "31 texts in MiniLM and 16 in SmolLM2, eight layers, attacks of 0.01 % to 10 % of ‖X‖.",
            "The adjustment for all pairs: without it one correlation with attacks on tokens has p = 0.004. What is not detected with "
            "so few texts may exist.",
            (
                "tests/experiments/test_correlation.py::test_layers_alone_explain_a_pooled_correlation",
                "tests/docs/test_claims.py::test_nothing_predicts_large_attacks_on_a_layer_better_than_its_constant",
                "tests/docs/test_claims.py::test_no_measure_splits_where_attacks_are_predicted",
            ),
        ),
        Claim(
            "Smoother layers and robust models",
            (
                ("findings.md", "**Smoother layers need not make a model more robust.**"),
                ("findings.md", numbers.smoother_models()),
                ("findings.md", numbers.smoother_choices()),
                ("robustness.md", "**A smoother layer need not make a more robust model.**"),
            ),
            (
                "python -m experiments.mitigations",
                "python -m experiments.mitigations --seed 1 --out docs/images/mitigations_choices.jsonl",
            ),
            ("mitigations.jsonl", "mitigations_choices.jsonl"),
            "Six mitigations of three layers at once, n = 32, 1 % of ‖X‖, twelve calls for each attack.",
            "Model and seed, of one text: in MiniLM smoother layers do make the model more robust.",
            (
                "tests/experiments/test_mitigations.py::test_records",
                "tests/experiments/test_mitigations.py::test_choices",
            ),
        ),
        Claim(
            "Distances between texts",
            (
                ("transport.md", "The worst direction does not point towards another text."),
                ("transport.md", numbers.quotients()),
            ),
            (
                "howsmooth meanfield distance minilm --layers all --p 2 --json distances.jsonl",
                "howsmooth meanfield distance smollm2 --layers 0,10 --p 2 --json distances.jsonl",
                "howsmooth measure minilm --layers all --lengths 64 --samples 1 --json distances.jsonl",
                "howsmooth measure smollm2 --layers 0,10 --lengths 64 --samples 1 --json distances.jsonl",
            ),
            ("distances.jsonl",),
            "Two consecutive chunks of 64 tokens of the embedded text; six layers of MiniLM and two of SmolLM2.",
            "Layer and text: on two chunks of Alice the quotients are between 0.9 and 1.2 times these. About these pairs, not all texts.",
            ("tests/docs/test_claims.py::test_quotients_are_below_the_local_constants",),
        ),
    ]


INTRODUCTION = """\
# Our claims against print

Where do these pages say that something printed is wrong, or that something is not so, and how can it be checked? Each such
statement has the command that computes it, its records, its range, what every free choice does (sign, seed, start, range,
number of points), and a test at small size. Unless another page is named, it is quoted from [the findings](findings.md). A test also fails if a page says something else than its records. The page is
written by `python docs/claims.py`.

`gpt2_attention.safetensors` has GPT-2's attention layers 0, 6 and 11; `$HOWSMOOTH_DATA` is the folder with `alice.txt`.
"""


def record_path(name: str) -> str:
    """Return the path of a file of records."""
    return name if "/" in name else f"docs/images/{name}"


def linked(name: str) -> str:
    """Return a link to a page, or the name of a file that is none."""
    return f"[{name.removesuffix('.md')}]({name})" if (DOCS / name).is_file() else f"`{name}`"


def read(name: str) -> str:
    """Return the text of a page of docs/, or of another file by its path."""
    page = DOCS / name
    return (page if page.is_file() else DOCS.parent / name).read_text(encoding="utf-8")


def page() -> str:
    """Return the Markdown of the page."""
    parts = [INTRODUCTION]
    for claim in claims():
        first = claim.sentences[0][0]
        quoted = "\n>\n".join(f"> {sentence}" for name, sentence in claim.sentences if name == first)
        pages = ", ".join(linked(name) for name in dict.fromkeys(name for name, _ in claim.sentences))
        said = f"- Said in: {pages}\n" if pages != linked("findings.md") else ""
        files = ", ".join(f"`{record_path(name)}`" for name in claim.records) or "none: the command prints all of it"
        lines = "\n".join(f"    {command}" for command in claim.commands)
        parts.append(
            f"## {claim.title}\n\n{quoted}\n\n{lines}\n\n"
            f"{said}- Records: {files}\n- Range: {claim.range}\n- Free choices: {claim.choices}\n"
            f"- Tests: {', '.join(f'`{one}`' for one in claim.tests)}\n"
        )
    return "\n".join(parts)


def folded(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def missing_sentences(read: Callable[[str], str]) -> list[str]:
    """Return the sentences that the page they are quoted from does not have."""
    pages = {name: folded(read(name)) for name in {name for claim in claims() for name, _ in claim.sentences}}
    return [
        f"{name}: {said}" for claim in claims() for name, said in claim.sentences if folded(said) not in pages[name]
    ]


def main() -> int:
    """Write or compare the page; return the exit code."""
    absent = missing_sentences(read)
    for line in absent:
        print(f"not on its page: {line}", file=sys.stderr)
    same = (DOCS / "claims.md").is_file() and (DOCS / "claims.md").read_text(encoding="utf-8") == page()
    if "--check" not in sys.argv[1:]:
        (DOCS / "claims.md").write_text(page(), encoding="utf-8")
        same = True
    repeated = [title for title, count in Counter(claim.title for claim in claims()).items() if count > 1]
    return 1 if absent or not same or repeated else 0


if __name__ == "__main__":
    sys.exit(main())
