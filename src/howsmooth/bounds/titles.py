"""Names of bounds for readers: `Bound.title`, which tables, legends and pages show in place of the function's name."""

from __future__ import annotations

# By the name of the function, in the order of the table in docs/bounds.md. Without an author: this project.
TITLES = {
    "castin2024.theorem1_upper": "Castin et al. 2024, Theorem 1",
    "castin2024.theorem1_lower": "Castin et al. 2024, Theorem 1, lower",
    "castin2024.multi_head_upper": "Castin et al. 2024, multi-head",
    "this_project.theorem1_with_bias": "Theorem 1 with biases",
    "this_project.upper": "sharper Theorem 1",
    "this_project.upper_in_n_and_a": "sharper Theorem 1, finite as n → ∞",
    "heads_together.upper": "all heads together",
    "heads_together.upper_on_outputs": "all heads together, normalised tokens",
    "this_project.lower": "two-point example, one head",
    "this_project.two_point_lower": "two-point example",
    "three_points.lower": "three-point example",
    "geshkovski2023.n_free_upper": "Geshkovski et al. 2023, any n",
    "this_project.n_free_upper": "bound for any n",
    "this_project.n_free_right_exponent": "bound for any n, right rate in R",
    "castin2024.mean_field_lower": "Castin et al. 2024, mean field",
    "this_project.two_dirac_lower": "two Dirac measures",
    "kim2021.r_squared_lower": "Kim et al. 2021, growth with R²",
    "yudin2025.local": "Yudin et al. 2025, local",
    "this_project.local": "local bound",
    "castin2024.large_radius": "Castin et al. 2024, large radius",
    "kim2021.l2_infinity": "Kim et al. 2021, L2 attention, ∞-norm",
    "kim2021.l2_two": "Kim et al. 2021, L2 attention, 2-norm",
}
# The sets on which bounds hold (`Bound.holds`), in words.
SCOPES = {
    "at X": "at this text",
    "on B_R^n": "worst case in the ball",
    "over outputs of the normalisation": "worst case, normalised tokens",
    "for all n": "worst case, any n",
    "sup over n": "worst case over all n",
    "at tX, t → ∞": "limit of large radius",
}


def title_of(name: str) -> str:
    """Return the title of a bound, or its name if this version does not define it.

    Example:
        >>> title_of("this_project.two_point_lower"), title_of("of another version")
        ('two-point example', 'of another version')
    """
    return TITLES.get(name, name)
