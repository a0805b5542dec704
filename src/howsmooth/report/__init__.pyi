from howsmooth.report.web_page import report_page as report_page
from howsmooth.report.figure import draw as draw
from howsmooth.report.charts import growth_picture as growth_picture, bounds_picture as bounds_picture
from howsmooth.report.style import figure_style as figure_style
from howsmooth.report.figure import save_figure as save_figure
from howsmooth.report.paper import write_figures as write_figures, tightness_chart as tightness_chart
from howsmooth.report.charts import (
    growth_charts as growth_charts,
    bounds_charts as bounds_charts,
    heat_maps as heat_maps,
)
from howsmooth.report.chart import (
    Picture as Picture,
    Panel as Panel,
    Chart as Chart,
    Axis as Axis,
    Series as Series,
    Band as Band,
    Annotation as Annotation,
    ReferenceSlope as ReferenceSlope,
    HeatMap as HeatMap,
)
from howsmooth.report.table import Table as Table, Column as Column
from howsmooth.report.page_tables import tables_of as tables_of
from howsmooth.report.web_page import write_csv as write_csv
