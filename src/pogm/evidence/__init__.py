"""The evidence in results/: the sweeps of its protocol, the plan of missing runs, tables, pages and the leaderboard."""
