"""Tables, charts and pages made from records; nothing is computed here.

`Table` and `Picture` describe what is shown. The modules `*_tables`, `charts` and `*_charts` make them from records;
`figure` draws pictures with matplotlib, the only module that makes figures, `embedding` puts
them on a page, and `web_page` writes the HTML report.
"""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
