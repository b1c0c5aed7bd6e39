"""Records that agents leave, and policies that hold them to something."""
