"""The report of a study: tables, plots and one page."""
