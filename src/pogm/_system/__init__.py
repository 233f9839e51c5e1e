"""Files, errors, runtime configuration and fault injection; nothing about learning."""
