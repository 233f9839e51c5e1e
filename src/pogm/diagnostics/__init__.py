"""Measurements of the paper on a run, without influence on the run."""

from pogm.diagnostics.probe import Probe as Probe
