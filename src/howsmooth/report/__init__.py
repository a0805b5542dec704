"""Reports read records and never compute: tables for the terminal, charts, pages.

`table.Table` and `chart.Chart` say what is shown. The `*_tables` files and `charts` make them from records; `figure`
draws charts with matplotlib, `web_page` writes the offline page that draws their JSON.
"""
