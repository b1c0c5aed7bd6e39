"""The examples that are more than one file, as processes of their own."""
