"""The tab for one layer at several lengths: the growth of its constant, and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from howsmooth.bounds import EVERY
from howsmooth.explorer import exports, html
from howsmooth.explorer.app import App, Cancellation, Session
from howsmooth.explorer.choice import Choice, prepare
from howsmooth.explorer.components import Updates, cancel_on_click, output, run_and_cancel, run_on_click
from howsmooth.explorer.links import MAX_LAYER, whole_number
from howsmooth.fits import Law, growth_laws
from howsmooth.report.figure import bounds_figure, growth_figure
from howsmooth.report.rows import confidence_text, interval, law_text, magnitude, number
from howsmooth.report.table import Column, Table
from howsmooth.studies import measure


def growth_tab(app: App) -> None:
    """Add the tab for the growth of one layer's constant with length, and its bounds."""
    longest = app.catalog.limits.max_tokens
    with gr.Row():
        layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="growth-layer", min_width=120)
        length = gr.Slider(
            16,
            longest,
            value=min(128, longest),
            step=1,
            label="Longest text, in tokens",
            elem_id="growth-length",
            scale=3,
            min_width=240,
        )
    controls = run_and_cancel("growth", "Follow the growth")
    status = controls.status
    table = output("growth-table")
    pictures = output("growth-pictures")
    save = output("growth-save")
    app.register(
        "growth",
        "Growth",
        {
            **app.model_and_text,
            "layer": (layer, whole_number(0, MAX_LAYER)),
            "length": (length, whole_number(16, longest)),
        },
    )

    def compute(
        cancellation: Cancellation, model: str, text: str, layer: float, longest: int, session: Session
    ) -> Updates:
        yield {status: html.progress(0, 1, f"loading {model}"), table: "", pictures: "", save: ""}
        work = prepare(Choice(model, text, str(int(layer or 0)), length=longest), app.catalog).lengths()
        lengths, found = work.settings.lengths, []
        for record in measure(work.model, work.text, work.settings.asking("bound"), progress=cancellation.check):
            found.append(record)
            if len(found) % len(EVERY) == 0:
                done = len(found) // len(EVERY)
                yield {status: html.progress(done, len(lengths), f"n = {record['n']}"), table: lengths_table(found)}
        session = session or Session()
        session.bounds = found
        measured = measured_constants(found)
        fits = growth_laws(measured)

        def growth(theme: str) -> Any:
            return growth_figure(measured, fits, theme=theme)

        def bounds(theme: str) -> Any:
            return bounds_figure(found, theme=theme, columns=1)  # as wide as the other picture

        yield {
            status: html.message(fit_text(fits), "done"),
            table: lengths_table(found),
            app.session: session,
            pictures: html.pictures(
                html.picture(growth, "Constant against length, with the fitted law"),
                html.picture(bounds, "The same between its bounds"),
            ),
            app.download: html.report_download(session.all_records),
        }
        values = {"model": model, "text": text, "layer": int(layer or 0), "length": int(longest), "lengths": lengths}
        yield {
            save: html.save_line(
                [
                    *html.figure_downloads(growth, "growth", "Growth"),
                    *html.figure_downloads(bounds, "bounds", "Bounds"),
                    html.text_download("Growth CSV", "growth.csv", exports.csv(measured, exports.LAYER_FIELDS)),
                    html.text_download("Bounds CSV", "bounds.csv", exports.csv(found, exports.BOUND_FIELDS)),
                    html.text_download("Python", "growth.py", exports.python_code("growth", values)),
                ],
                app.link("growth", values),
            )
        }

    event = run_on_click(
        app,
        controls,
        compute,
        [app.model, app.text, layer, length, app.session],
        [table, pictures, save, app.session, app.download],
    )
    cancel_on_click(app, controls, [event])


def measured_constants(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the measured constant at each length from the records of bounds."""
    return list({record["n"]: {**record, **record["measured"]} for record in records}.values())


def lengths_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of measured constants and the tightest bounds on the whole ball, a row for each length."""

    def tightest(side: str, reduce: Callable[[list[float]], float]) -> Callable[[dict[str, Any]], str]:
        def cell(one: dict[str, Any]) -> str:
            logs = [r["log_value"] for r in records if (r["n"], r["side"], r["holds"]) == (one["n"], side, "on B_R^n")]
            return magnitude(reduce(logs)) if logs else ""

        return cell

    rows = measured_constants(records)
    return html.table(
        Table(
            f"Layer {records[0]['layer']}; the ball is all that its normalisation can put out",
            [
                Column("n", lambda one: one["n"]),
                Column("constant", lambda one: html.strong(number(one["value"]))),
                Column(
                    f"interval, {confidence_text(rows)}",
                    lambda one: interval(one["lower"], one["upper"]),
                    "left",
                    css="hs-wide",
                ),
                Column("sup on the ball ≥", tightest("lower", max)),
                Column("sup on the ball ≤", tightest("upper", min)),
            ],
            rows,
        )
    )


def fit_text(fits: dict[tuple, Law]) -> str:
    """Describe the fitted law."""
    if not fits:
        return "No constant is positive, so there is no law."
    (law,) = fits.values()
    return (
        f"Lip ≈ {law_text(law)}: {law.verdict}; theory allows √n at most."
        if law.shown
        else f"{law.verdict[:1].upper()}{law.verdict[1:]}."
    )
