"""Planning: trials, the parsing of trials from text, and sweeps."""
