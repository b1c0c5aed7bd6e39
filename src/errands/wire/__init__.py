"""How the model is written as bytes. A protocol version is a table and a codec, the same for server and client."""
