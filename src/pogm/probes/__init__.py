"""What the paper measures on a run, without touching it."""

from pogm.probes.probe import Probe as Probe
