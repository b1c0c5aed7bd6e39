"""How the model looks as bytes. A protocol version is a table and a codec; server and client use the same code."""
