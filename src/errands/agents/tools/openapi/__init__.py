"""`openapi`: the operations of a service that describes itself, OpenAPI 3.0 and 3.1.

`document` is what was fetched, `schemas` writes its schemas out, `operations` says what can be called with what, and
`calling` makes a request of a call. `backend` puts them together.
"""

from errands.agents.tools.openapi.backend import OpenApiBackend

__all__ = ["OpenApiBackend"]
