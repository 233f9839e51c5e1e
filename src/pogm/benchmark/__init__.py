"""From a plan to a table."""
