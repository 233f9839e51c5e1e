"""Run the command line by ``python -m pogm``."""

import sys

from pogm.cli import main

sys.exit(main())
