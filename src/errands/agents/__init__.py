"""Agents that are written down instead of programmed: manifests, their tools and the loop that runs them."""
