"""The data model: A2A 1.0 as typed structs, and the records of the log. No I/O, no other layer."""
