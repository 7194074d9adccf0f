"""HTTP API under ``/api/v1``: the frame (``app``) and who calls (``auth``); the routes are in the rooms.

To add a resource: a router in its room's ``api``, one line in ``app``.
"""
