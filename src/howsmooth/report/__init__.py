"""Tables, charts and pages made from records; nothing is computed here.

`Table` and `Chart` describe what is shown. The modules `*_tables` and `charts` make them from records; `figure` draws
charts with matplotlib, and `web_page` writes the HTML report, which draws their JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.report.chart import Annotation, Axis, Band, Chart, HeatMap, ReferenceSlope, Series
    from howsmooth.report.charts import bounds_charts, growth_charts, heat_maps, tightness_chart
    from howsmooth.report.figure import bounds_figure, draw, growth_figure, save_figure
    from howsmooth.report.page_tables import tables_of
    from howsmooth.report.paper import write_figures
    from howsmooth.report.style import figure_style
    from howsmooth.report.table import Column, Table
    from howsmooth.report.web_page import report_page, write_csv

__getattr__, __dir__ = attach(
    __name__,
    {
        "report_page": "howsmooth.report.web_page",
        "growth_figure": "howsmooth.report.figure",
        "bounds_figure": "howsmooth.report.figure",
        "draw": "howsmooth.report.figure",
        "figure_style": "howsmooth.report.style",
        "save_figure": "howsmooth.report.figure",
        "write_figures": "howsmooth.report.paper",
        "growth_charts": "howsmooth.report.charts",
        "bounds_charts": "howsmooth.report.charts",
        "tightness_chart": "howsmooth.report.charts",
        "heat_maps": "howsmooth.report.charts",
        "Chart": "howsmooth.report.chart",
        "Axis": "howsmooth.report.chart",
        "Series": "howsmooth.report.chart",
        "Band": "howsmooth.report.chart",
        "Annotation": "howsmooth.report.chart",
        "ReferenceSlope": "howsmooth.report.chart",
        "HeatMap": "howsmooth.report.chart",
        "Table": "howsmooth.report.table",
        "Column": "howsmooth.report.table",
        "tables_of": "howsmooth.report.page_tables",
        "write_csv": "howsmooth.report.web_page",
    },
)

__all__ = [
    "report_page",
    "growth_figure",
    "bounds_figure",
    "draw",
    "figure_style",
    "save_figure",
    "write_figures",
    "growth_charts",
    "bounds_charts",
    "tightness_chart",
    "heat_maps",
    "Chart",
    "Axis",
    "Series",
    "Band",
    "Annotation",
    "ReferenceSlope",
    "HeatMap",
    "Table",
    "Column",
    "tables_of",
    "write_csv",
]
