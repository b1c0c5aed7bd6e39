"""The protocol over HTTP: bindings written once, for every dialect."""
