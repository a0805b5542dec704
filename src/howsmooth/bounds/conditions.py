"""What bounds ask of a layer. Each condition refuses by name, or hands back its wording for `Bound.conditions`."""

from __future__ import annotations

from howsmooth.bounds.bound import Refused
from howsmooth.bounds.form import LayerForm


def one_head(form: LayerForm, bound: str) -> str:
    if form.heads > 1:
        raise Refused(bound, "one head", f"{form.heads} heads",
                      "take f.head(i), castin2024.multi_head_upper, or a bound of this_project")
    return "one head"


def no_bias(form: LayerForm, bound: str) -> str:
    """Query biases, and key biases where softmax does not drop them."""
    if form.biased:
        which = "query" if bool((form.query_offset > 0).any()) else "key"
        raise Refused(bound, "no query bias" if which == "query" else f"no {which} bias with rotary or capped scores",
                      f"a {which} bias, which enters the scores", "take a bound of this_project, which counts it")
    return "no query bias"


def unmasked(form: LayerForm, bound: str, remedy: str = "take this_project.n_free_upper or this_project.upper") -> str:
    if form.causal:
        raise Refused(bound, "attention without a mask", "causal attention", remedy)
    return "no mask"


def no_window(form: LayerForm, bound: str) -> str:
    if form.f.window is not None:
        raise Refused(bound, "attention without a window", f"a window of {form.f.window}", "take this_project.upper")
    return "no window"


def no_offsets(form: LayerForm, bound: str) -> str:
    if form.f.score_bias is not None:
        raise Refused(bound, "scores without offsets", "a score_bias", "take a bound of this_project")
    return "no score offsets"


def nothing_hidden(form: LayerForm, bound: str, n: int) -> str:
    """Offsets of −∞ are a mask of their own, of which bounds free of n know nothing."""
    if form.hides(n):
        raise Refused(bound, "finite score offsets", "a score_bias of −∞ somewhere", "take this_project.upper")
    return "finite score offsets" if form.f.score_bias is not None else "no score offsets"


def scaled_identity(form: LayerForm, bound: str) -> float:
    """|s| where W V = s·I for the only head."""
    product = form.wv[0] if form.wo is None else form.wo[0] @ form.wv[0]
    if product.shape[0] == product.shape[1]:
        s = float(product.diagonal().mean())
        rest = product.clone()
        rest.diagonal().sub_(s)
        if float(rest.abs().max()) <= 1e-12 * abs(s):
            return abs(s)
    raise Refused(bound, "V = I (or a multiple of it), the output projection included", "another V",
                  "take this_project.lower or this_project.two_point_lower")
