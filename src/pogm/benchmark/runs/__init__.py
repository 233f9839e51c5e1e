"""Running trials: run directories, runners and executors."""
