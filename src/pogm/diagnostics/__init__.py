"""What the paper measures on a run, without touching it."""

from pogm.diagnostics.probe import Probe as Probe
