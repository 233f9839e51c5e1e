"""The vocabulary: batches, models, states, problems. Depends on torch alone."""
