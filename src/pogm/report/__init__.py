"""What runs are shown as: figures, tables and pages, for a browser, a paper and a terminal."""
