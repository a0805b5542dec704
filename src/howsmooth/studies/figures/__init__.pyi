from howsmooth.studies.figures.definition import (
    Figure as Figure,
    figure_names as figure_names,
    read_figure as read_figure,
)
from howsmooth.studies.figures.run import Outcome as Outcome, run_figure as run_figure
from howsmooth.studies.figures.panels import (
    laws_of as laws_of,
    ratios_of as ratios_of,
    correlations_of as correlations_of,
)
