"""Where logs are kept. `base` is the port; every other module is one way to implement it."""
