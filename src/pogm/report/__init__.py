"""Figures, tables and pages of runs, for a browser, a paper and a terminal."""
