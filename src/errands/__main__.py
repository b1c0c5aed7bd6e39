"""`python -m errands` is `errands`."""

from errands.cli import main

main()
