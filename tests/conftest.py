"""What every test runs under."""

import torch

# Workers of pytest-xdist share the cores: torch's own threads on top make small operations wait for one another.
torch.set_num_threads(1)
