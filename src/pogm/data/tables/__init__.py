"""Files of arrays and tables: reading, and encoding of columns."""
