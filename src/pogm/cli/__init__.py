"""Command line of pogm: one file per command."""

from pogm.cli.app import main as main
