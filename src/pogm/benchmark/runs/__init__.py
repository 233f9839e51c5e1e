"""Running trials: run directories, the runner, executors, progress and estimates."""
