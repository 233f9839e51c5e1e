"""Results of runs: records, model selection, statistics and tables."""
