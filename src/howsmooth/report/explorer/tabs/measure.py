"""Constants of layers as they arrive; a layer clicked shows its heads, a token what perturbing it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import gradio as gr

from howsmooth.report.explorer import html
from howsmooth.report.explorer.choice import MAPS, Choice, prepare
from howsmooth.report.explorer.desk import Desk
from howsmooth.report.explorer.screen import Screen
from howsmooth.report.explorer.stopping import Flag
from howsmooth.report.explorer.tabs.buttons import (
    PRIVATE,
    cancelling,
    clickable,
    computing,
    run_and_cancel,
    shown,
    started,
)
from howsmooth.studies import measure, move_one_token
from howsmooth.studies.measuring import TOKEN_CHOICES


def tab(desk: Desk) -> None:
    with gr.Row():
        layers = gr.Textbox("all", label="Layers", info="all, or numbers such as 0,2,5", elem_id="layers", max_lines=1)
        map_name = gr.Dropdown(list(MAPS), value="attention", label="Map", elem_id="map",
                               info="attention alone, with norm, with residual, or the layer")
        tokens = gr.Dropdown(list(TOKEN_CHOICES), value="all", label="Tokens that may move", elem_id="tokens",
                             info="all, or without special or first ones")
    length = gr.Slider(8, desk.shelf.limits.max_tokens, value=64, step=1, label="Tokens of the text to measure",
                       elem_id="length")
    run, cancel, status = run_and_cancel("measure", "Measure")
    table = clickable("constants", "layer")
    words = clickable("words", "token")
    token = shown("token")
    heads = shown("heads")
    command = shown("command")
    desk.download = gr.DownloadButton("Download the report of what is on the screen", interactive=False,
                                      elem_id="download")

    def layers_of(flag: Flag, visitor: str | None, *values) -> Iterator[dict]:
        choice = Choice(values[0], values[1], *values[2:])
        yield {status: html.progress(0, 1, f"loading {choice.model}"), table: "", words: "", token: "", heads: "",
               command: ""}
        work = prepare(choice, desk.shelf)
        screen = Screen(work.choice)
        total = work.settings.estimates
        yield {status: html.progress(0, total, f"{work.note}"), command: html.command_line(work.choice.command)}
        for record in measure(work.model, work.text, work.settings, step=flag.check):
            screen.records.append(record)
            yield {status: html.progress(len(screen.records), total, f"layer {record['layer']}, n = {record['n']}"),
                   table: html.constants(screen.records), desk.screen: screen}
        screen.layer = screen.roughest
        yield {status: html.said(f"Measured on {work.note}. Click a layer for its heads, a token for what moving it "
                                 "does.", "done"), desk.screen: screen, **looked_at(screen),
               desk.download: gr.update(**desk.report(visitor, screen))}

    def looked_at(screen: Screen, position: int | None = None) -> dict:
        record = screen.record(screen.layer)
        caption = f"Where the worst direction of layer {screen.layer} sits: the darker, the larger a token's share."
        return {table: html.constants(screen.records, screen.layer),
                words: html.words(screen.words, record["shares"], position, caption) if record["shares"] else ""}

    def look_into(screen: Screen, event: gr.EventData) -> dict:
        if screen is None or screen.record(event.index) is None:
            return {status: html.said("That layer is not measured yet.", "warn")}
        screen.layer = event.index
        return {desk.screen: screen, heads: "", token: "", **looked_at(screen)}

    def heads_of(screen: Screen, request: gr.Request) -> Iterator[dict]:
        if screen is None or screen.layer is None:
            return

        def compute(flag: Flag) -> Iterator[dict]:
            layer = screen.layer
            work = prepare(screen.choice, desk.shelf).layer(layer, heads="all")
            found = screen.heads.setdefault(layer, [])
            found.clear()
            for record in measure(work.model, work.text, work.settings, step=flag.check):
                found.append(record)
                yield {status: html.progress(len(found), work.settings.estimates, f"heads of layer {layer}"),
                       heads: html.constants(found, heads=True)}
            yield {status: html.said(f"All heads of layer {layer} are measured.", "done"), desk.screen: screen,
                   desk.download: gr.update(**desk.report(request.session_hash, screen))}

        yield from desk.run(request.session_hash, status, compute)

    def move(screen: Screen, request: gr.Request, event: gr.EventData) -> Iterator[dict]:
        if screen is None or screen.layer is None:
            return

        def compute(flag: Flag) -> Iterator[dict]:
            record = screen.record(screen.layer)
            yield {status: html.progress(0, 1, f"moving token {event.index} alone"), **looked_at(screen, event.index)}
            work = prepare(replace(screen.choice, tokens="all"), desk.shelf).layer(screen.layer)
            found = move_one_token(work.model, work.text, work.settings, event.index)
            yield {token: html.moved(found, record["shares"][event.index], record["value"]),
                   status: html.said(f"Token {event.index} was moved alone.", "done")}

        yield from desk.run(request.session_hash, status, compute)

    measured = started(desk, run, status, layers_of, [desk.model, desk.text, layers, map_name, length, tokens],
                       [table, words, token, heads, command, desk.screen, desk.download])
    looked = table.select(look_into, desk.screen, [status, table, words, token, heads, desk.screen], queue=False,
                          **PRIVATE)
    opened = looked.then(heads_of, desk.screen, [status, heads, desk.screen, desk.download], **computing(status))
    one = words.select(move, desk.screen, [status, table, words, token], **computing(status))
    cancelling(desk, cancel, status, [measured, opened, one])
