"""Agents written in YAML: manifests, their models, tools and mounts, and the loop that runs them."""
