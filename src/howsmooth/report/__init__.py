"""Reports read records and never compute: a table for the terminal, a figure, a page."""
