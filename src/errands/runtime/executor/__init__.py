"""The executor programming model: an agent that publishes events to a queue, run by the same adapter as a `Worker`.

`agent` is what a person subclasses, `request` and `call` what it is given, `queue` and `updater` what it writes to,
`worker` what makes a `Worker` of it.
"""
