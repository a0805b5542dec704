"""`howsmooth flow gaussian`: a Gaussian under attention, its mean and covariance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.flow.options import MatrixText, animation_options, attention_options
from howsmooth.cli.options import output_options
from howsmooth.cli.parameter_types import MAX_NUMBER, Count, Number, NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.cli.run import ProgressCallback
    from howsmooth.dynamics.runs import GaussianRun

_EARLY_STEPS = 1_000  # after which it is said if the steps will not suffice; a flow that blows up takes fewer


@click.command(
    name="gaussian",
    short_help="A Gaussian under attention: mean, covariance, blow-up, limiting rank.",
    help="Integrate N(mean, covariance) under x' = Γ(x): when and in which direction it blows up, and its limiting "
    "rank.\n\n"
    "    EXAMPLE is a TOML file or an example of `flow particles`, whose attention is used (in the coordinates x); "
    "by default A = V = I.",
)
@attention_options(["softmax", "l2", "sinkhorn", "linear"], 2)
@click.option(
    "--mean",
    type=NumberList(example="0,1", minimum=-MAX_NUMBER, keep_duplicates=True),
    help="Mean of the initial Gaussian.  [default: 0]",
)
@click.option(
    "--covariance",
    type=MatrixText(names=()),
    default="1",
    show_default=True,
    help="Covariance of the initial Gaussian.",
)
@click.option("--particles", type=Count(2), metavar="COUNT", help="Number of particles: also integrate this many.")
@click.option(
    "--frames", type=Count(11), metavar="COUNT", default=101, show_default=True, help="Number of depths to keep."
)
@click.option(
    "--rtol",
    type=Number(0, 1, exclusive=True),
    metavar="NUMBER",
    default=1e-9,
    show_default=True,
    help="Relative tolerance of the integrator.",
)
@click.option(
    "--max-solver-steps",
    "max_steps",
    type=Count(),
    metavar="COUNT",
    default=20_000,
    show_default=True,
    help="Maximum number of integrator steps.",
)
@output_options("json", "plot", plot="ellipses and eigenvalues")
@animation_options(animate="ellipses and eigenvalues")
@runtime_options()
def command(
    example: str | None,
    mean: tuple[float, ...] | None,
    covariance: Any,
    particles: int | None,
    frames: int,
    rtol: float,
    max_steps: int,
    json_path: str | None,
    plot_path: str | None,
    animation_path: str | None,
    theme: str,
    **attention: Any,
) -> int:
    """Run `howsmooth flow gaussian` and return its exit code."""
    from howsmooth.cli.run import Computation, print_warning, run_command

    gaussian_flow_figure = deferred("howsmooth.report.density_figures:gaussian_flow_figure")
    save_gaussian_animation = deferred("howsmooth.report.density_figures:save_gaussian_animation")
    gaussian_tables = deferred("howsmooth.report.flow_tables:gaussian_tables")

    runs: list[GaussianRun] = []
    told: list[float] = []  # whether the word about the pace was said

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_torch
        from howsmooth.dynamics.declaration import check_matrix
        from howsmooth.dynamics.overrides import declared_attention

        is_random = "random" in (attention["a"], attention["v"])
        if is_random:  # the matrices are drawn with torch
            load_torch(stderr)
        flow_example = declared_attention(example, default_dim=2, **attention)
        d = flow_example.tokens.dim
        if mean is not None and len(mean) != d:
            raise InputError(f"expected a --mean of {d} numbers, got {len(mean)}; --dim sets how many")
        check_matrix(covariance, d, "--covariance")
        if not is_random:
            load_torch(stderr)

        from howsmooth.dynamics.runs import run_gaussian

        until = flow_example.flow.until

        def show(progress: ProgressCallback, t: float, steps: int) -> None:
            progress(f"t = {t:.4g} of {until:g}, step {steps:,} of at most {max_steps:,}")
            if steps == _EARLY_STEPS < max_steps and t / until < steps / max_steps and not told:
                told.append(t)
                print_warning(
                    stderr,
                    f"note: t = {t:.3g} of {until:g} after {steps:,} of at most {max_steps:,} steps: at this pace the "
                    "steps do not suffice; a shorter --until or fewer --max-solver-steps end the flow sooner",
                )

        def records(progress: ProgressCallback) -> Iterator[Record]:
            runs.append(
                run_gaussian(
                    flow_example,
                    mean,
                    covariance,
                    frames=frames,
                    rtol=rtol,
                    max_steps=max_steps,
                    particles=particles,
                    seed=attention["seed"],
                    progress=partial(show, progress),
                )
            )
            yield runs[0].as_record()

        return Computation(flow_example.name, 1, records)

    def figure_arguments() -> dict[str, Any]:
        return {"tokens": runs[0].tokens, "title": runs[0].title, "theme": theme}

    return run_command(
        outputs={"--json": json_path, "--plot": plot_path, "--animate": animation_path},
        prepare=prepare,
        record_noun="record",
        table=lambda records: gaussian_tables(runs[0], records[0]),
        caveats=lambda _: runs[0].caveats(),
        describe=str,
        plot=lambda records: gaussian_flow_figure(records[0], **figure_arguments()),
        writers={"--animate": lambda path, records: save_gaussian_animation(path, records[0], **figure_arguments())},
    )
