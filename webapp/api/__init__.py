"""HTTP API under ``/api/v1``: assembly (``app``) and authentication (``auth``).

The routes are in the packages' ``api`` modules. To add a resource, add a router there and a line to ``app``.
"""
